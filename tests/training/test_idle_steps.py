"""Why a step trained nothing, as the estimator or the update knows it."""

from dataclasses import replace

import pytest
import torch

from episodes_for_tests import group_of, turn_of
from learners_for_tests import estimate_of, make_learner, random_groups, rollout_of, settings_of
from turnwise.core.trajectory import Group, Status
from turnwise.record.steps import IdleReason
from turnwise.run.build_learner import build_coefficients, estimate_settings, update_settings
from turnwise.training.coefficients import Coefficients
from turnwise.training.estimators.on_policy import OnPolicy
from turnwise.training.step import Rollout
from turnwise.training.update import update

PLAIN = {"algo__kl_coef": 0.0, "algo__entropy_coef": 0.0}
NOTHING_SAMPLED = group_of([[turn_of([3] * 9, [], extends=False)]] * 2)


def cut_short(group: Group) -> Group:
    members = tuple(replace(each, status=Status.TRUNCATED_TOKENS) for each in group.trajectories)
    return replace(group, trajectories=members)


@pytest.mark.parametrize(
    ("rollout", "reason"),
    [
        (rollout_of([NOTHING_SAMPLED]), IdleReason.NO_TOKENS),
        (rollout_of([cut_short(group) for group in random_groups()]), IdleReason.TRUNCATED),
        (replace(rollout_of(random_groups()), kept=[], empty=IdleReason.FILTERED), IdleReason.FILTERED),
        (replace(rollout_of(random_groups()), kept=[], empty=IdleReason.DROPPED), IdleReason.DROPPED),
    ],
)
def test_estimate_of_nothing_returns_the_reason(rollout: Rollout, reason: IdleReason) -> None:
    config = settings_of(algo__truncated="drop")
    coefficients = Coefficients(build_coefficients(config.algo), kl_in_loss=True)
    assert (
        OnPolicy(estimate_settings(config.algo, config.reward), coefficients).estimate(
            rollout, None, make_learner(config)
        )
        is reason
    )


def idle_reason(scale: float = 0.0, shares: dict[str, float] | None = None, **settings: object) -> IdleReason | None:
    """Return why an update trains nothing whose advantages are multiplied by `scale`."""
    config = settings_of(**PLAIN | settings)
    learner = make_learner(config)
    estimated = estimate_of(random_groups(), learner, config)
    assert estimated is not None
    scaled = replace(estimated, advantages=[each * scale for each in estimated.advantages])
    scaled = replace(scaled, metrics=scaled.metrics | (shares or {}))
    return update(learner, scaled, update_settings(config.algo, config.critic, config.train, config.seed), 0).idle


KEPT = {"algo__loss": "reinforce", "algo__entropy_coef": 1e-30}
"""Samples without an advantage are passed through the model: their gradient is 0."""


@pytest.mark.parametrize(
    ("shares", "skipped", "kept"),
    [
        ({}, IdleReason.ZERO_ADVANTAGES, IdleReason.ZERO_GRADIENT),
        ({"loss_token_share": 0.0}, IdleReason.LOSS_TOKENS, IdleReason.LOSS_TOKENS),
        ({"advantage_token_share": 0.0}, IdleReason.ADVANTAGE_TOKENS, IdleReason.ADVANTAGE_TOKENS),
        (
            {"loss_token_share": 0.5, "advantage_token_share": 0.5},
            IdleReason.ZERO_ADVANTAGES,
            IdleReason.DISJOINT_TOKENS,
        ),
        (
            {"loss_token_share": 0.6, "advantage_token_share": 0.6},
            IdleReason.ZERO_ADVANTAGES,
            IdleReason.ZERO_GRADIENT,
        ),
        ({"loss_token_share": 0.1}, IdleReason.ZERO_ADVANTAGES, IdleReason.ZERO_GRADIENT),
    ],
)
def test_update_without_advantages_returns_the_reason(
    shares: dict[str, float], skipped: IdleReason, kept: IdleReason
) -> None:
    assert idle_reason(shares=shares) is skipped
    assert idle_reason(shares=shares, **KEPT) is kept


def test_update_that_trains_has_no_idle_reason() -> None:
    assert idle_reason(scale=1.0) is None
    config = settings_of("head", critic__warmup_steps=5)
    learner = make_learner(config)
    estimated = estimate_of(random_groups(), learner, config)
    assert estimated is not None
    updated = update(learner, estimated, update_settings(config.algo, config.critic, config.train, config.seed), 0)
    assert "grad_norm" not in updated.metrics and updated.idle is None, "the critic's warm-up"


def test_update_whose_gradients_are_not_finite_is_skipped() -> None:
    config = settings_of(**PLAIN)
    learner = make_learner(config)
    estimated = estimate_of(random_groups(), learner, config)
    assert estimated is not None
    weight = next(iter(learner.model.parameters()))
    weight.grad = torch.full_like(weight, float("nan"))
    assert (
        update(learner, estimated, update_settings(config.algo, config.critic, config.train, config.seed), 0).idle
        is IdleReason.SKIPPED
    )
