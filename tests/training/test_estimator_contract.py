"""The contract of `Estimator` over every estimator of turnwise, and over estimators that break it."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from learners_for_tests import make_learner, random_groups, rollout_of, settings_of
from models_for_tests import random_model
from turnwise.algos.advantages import ADVANTAGES
from turnwise.core.learner import Learner, Needs
from turnwise.core.protocols import Sampling
from turnwise.engine.scripted import ScriptedEngine
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.critic import UtteranceCritic
from turnwise.record.steps import IdleReason
from turnwise.record.trajectories import open_replay
from turnwise.run.build_learner import build_coefficients, estimate_settings
from turnwise.testing import check_estimator
from turnwise.training.coefficients import Coefficients
from turnwise.training.estimators.archer import ActorSettings, Archer, UtteranceSampler
from turnwise.training.estimators.archer_offline import OfflineArcher
from turnwise.training.estimators.on_policy import OnPolicy
from turnwise.training.estimators.utterance_critic import UtteranceCriticLearner
from turnwise.training.optimizer import Optimizer, OptimizerSettings
from turnwise.training.step import Estimate, Rollout

OPTIMIZER = OptimizerSettings(learning_rate=1e-3, weight_decay=0.0, max_grad_norm=1.0)
ROLLOUT = rollout_of(random_groups(groups=3, members=3))
WITH_BASELINES = replace(ROLLOUT, baselines={(group.task.env, group.task.seed): 0.25 for group in ROLLOUT.groups})


def on_policy(critic: str = "no critic", **settings: Any) -> OnPolicy:
    config = settings_of(critic, **settings)
    return OnPolicy(
        estimate_settings(config.algo, config.reward), Coefficients(build_coefficients(config.algo), kl_in_loss=True)
    )


@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_on_policy_keeps_the_contract(advantage: str) -> None:
    chosen = ADVANTAGES[advantage]
    settings = {"algo__advantage": advantage} | ({"algo__kl_in": "reward"} if chosen.outcome_minus_kl else {})
    critic = "head" if chosen.needs_critic else "no critic"
    learner = make_learner(settings_of(critic, **settings), moved=0.01)
    check_estimator(lambda: on_policy(critic, **settings), WITH_BASELINES, learner)


def critic_of_utterances(expectile: float | None) -> UtteranceCriticLearner:
    critic = UtteranceCritic(random_model("llama", ATTENTION), seed=1)
    optimizer = Optimizer(list(critic.parameters()), OPTIMIZER, lambda step: 1.0)
    return UtteranceCriticLearner(critic, optimizer, target_rate=0.5, expectile=expectile, micro_tokens=1000)


def make_archer(kind: str, folder: Path) -> Archer | OfflineArcher:
    given = {"critic__kind": "utterances", "critic__updates": 2, "critic__batch": 3}
    given |= {"algo__estimator__states": 5} if kind != "archer_offline" else {}
    config = settings_of(algo__estimator=kind, algo__kl_coef=0.0, **given)
    archer: Any = config.algo.estimator
    critic: Any = config.critic
    settings = ActorSettings(
        archer=archer, critic=critic, algo=config.algo, needs=Needs(), micro_tokens=1000, run_seed=0
    )
    sampler = UtteranceSampler(
        policy=ScriptedEngine(lambda key, turn, ids: [int(ids[-1]), 1], [1]),
        sampling=Sampling(max_tokens=6, temperature=0.8),
        summary_tokens=2,
        max_tokens=40,
        run_seed=0,
    )
    replay = open_replay(folder, 100)
    if kind == "archer":
        return Archer(settings=settings, critic=critic_of_utterances(None), replay=replay, sampler=sampler)
    for group in ROLLOUT.groups:
        for trajectory in group.trajectories:
            replay.add(trajectory)
    if kind == "awac":
        return OfflineArcher(settings=settings, critic=critic_of_utterances(None), replay=replay, sampler=sampler)
    return OfflineArcher(settings=settings, critic=critic_of_utterances(0.8), replay=replay, sampler=None)


@pytest.mark.parametrize("kind", ["archer", "archer_offline", "awac"])
def test_critic_of_utterances_keeps_the_contract(kind: str, tmp_path: Path) -> None:
    folders = count()
    learner = make_learner(settings_of())
    check_estimator(lambda: make_archer(kind, tmp_path / str(next(folders))), ROLLOUT, learner)


class Changed:
    """Changes the estimates of `OnPolicy`."""

    trains, setting = False, "test"

    def __init__(self, change: Callable[[Estimate], Any]) -> None:
        self._change, self._inner = change, on_policy()

    async def sample(self, rollout: Rollout) -> None:
        return None

    def estimate(self, rollout: Rollout, sampled: None, learner: Learner) -> Estimate | IdleReason:
        estimate = self._inner.estimate(rollout, sampled, learner)
        assert isinstance(estimate, Estimate)
        changed: Estimate | IdleReason = self._change(estimate)
        return changed


def everywhere(estimate: Estimate, value: float) -> list[torch.Tensor]:
    return [torch.full_like(values, value) for values in estimate.advantages]


DRAWS = count()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda estimate: IdleReason.FILTERED, "gives no estimate"),
        (lambda estimate: replace(estimate, group_ids=()), "each trajectory has a group"),
        (
            lambda estimate: replace(estimate, trajectories=estimate.trajectories[:1], group_ids=(0,)),
            "of one of the trajectories",
        ),
        (lambda estimate: replace(estimate, old_logprobs=None), "old_logprobs is given"),
        (
            lambda estimate: replace(estimate, advantages=[values[1:] for values in estimate.advantages]),
            "advantages has a value per token",
        ),
        (lambda estimate: replace(estimate, advantages=everywhere(estimate, math.nan)), "advantages is finite"),
        (lambda estimate: replace(estimate, advantages=everywhere(estimate, 1.0)), "not sampled have advantage 0"),
        (
            lambda estimate: replace(estimate, loss_masks=[mask[1:] for mask in estimate.loss_masks]),
            "loss_masks has an entry per sampled token",
        ),
        (lambda estimate: replace(estimate, returns=estimate.advantages), "returns come with"),
        (lambda estimate: replace(estimate, metrics={"kl": math.inf}), "metrics are finite numbers"),
        (lambda estimate: replace(estimate, rate_scale=-1.0), "rate_scale is a factor"),
        (
            lambda estimate: replace(
                estimate, trajectories=tuple(replace(each, attempt=9) for each in estimate.trajectories)
            ),
            "those of the rollout",
        ),
        (
            lambda estimate: replace(
                estimate, advantages=[values * (1 + next(DRAWS)) for values in estimate.advantages]
            ),
            "equal advantages",
        ),
    ],
)
def test_check_estimator_names_the_broken_rule(change: Callable[[Estimate], Any], rule: str) -> None:
    learner = make_learner(settings_of(), moved=0.01)
    with pytest.raises(AssertionError, match=rule):
        check_estimator(lambda: Changed(change), ROLLOUT, learner)


class TrainsThePolicy(Changed):
    def estimate(self, rollout: Rollout, sampled: None, learner: Learner) -> Estimate | IdleReason:
        with torch.no_grad():
            next(parameter for _, parameter in learner.weights().named_parameters()).add_(1.0)
        return super().estimate(rollout, sampled, learner)


def test_check_estimator_finds_one_that_trains_the_policy() -> None:
    learner = make_learner(settings_of(), moved=0.01)
    with pytest.raises(AssertionError, match="leaves the policy's weights to the update"):
        check_estimator(lambda: TrainsThePolicy(lambda estimate: estimate), ROLLOUT, learner)
