"""Tokens that are rejected, or dropped by `masked`, contribute nothing to a step, but count in its denominator."""

from typing import Any

import pytest
import torch
from step_by_hand_for_tests import (
    assert_same_gradients,
    clipped_loss,
    gradients_of,
    less_the_mean,
    plain_model,
    tokens_of,
)

from learners_for_tests import gradients, learn, make_learner, random_groups, settings_of, weights
from models_for_tests import random_model
from turnwise.algos.off_policy import TwoSided, Veto

LEARNER = {"algo__old_logprobs": "learner"}
BOTH_TERMS = {"algo__kl_coef": 0.3, "algo__entropy_coef": 0.2}
DROPS_ALL: dict[str, dict[str, Any]] = {
    "veto": {**LEARNER, "algo__rejection": "veto"},
    "reject": {**LEARNER, "algo__rejection": "token", "algo__rejection__bounds": (1e6, 1e7)},
    "masked": {
        **LEARNER,
        "algo__correction": "masked",
        "algo__correction__bounds": (1e6, 1e7),
    },
}


def differences(config: Any) -> torch.Tensor:
    """Return the largest change of each parameter in a step whose entropy and KL terms are not 0."""
    learner = make_learner(config, moved=0.05)
    before = weights(learner.model)
    metrics = learn(learner, random_groups(), config)
    assert metrics["entropy"] > 0 and metrics["kl"] != 0, "dropped tokens are still measured"
    return torch.stack([(before[name] - each).abs().max() for name, each in weights(learner.model).items()])


@pytest.mark.parametrize("how", DROPS_ALL)
def test_step_without_a_token_left_changes_no_weight(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Veto, "lowest", 1.0)
    config = settings_of(**BOTH_TERMS, **DROPS_ALL[how])
    assert float(differences(config).max()) == 0
    assert float(differences(settings_of(**BOTH_TERMS, **LEARNER)).max()) > 0


def test_two_sided_keeps_entropy_and_kl_where_it_bounds_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a bound of the policy's step, as the clip is."""
    monkeypatch.setattr(TwoSided, "difference", 1e-9)
    config = settings_of(**BOTH_TERMS, **LEARNER, algo__correction="two_sided")
    assert float(differences(config).max()) > 0


@pytest.mark.parametrize("how", ["reject", "masked"])
def test_step_trains_the_kept_tokens_and_divides_by_all(how: str) -> None:
    name, value = {"reject": ("algo__rejection", "token"), "masked": ("algo__correction", "masked")}[how]
    config = settings_of(
        **{**BOTH_TERMS, **LEARNER, "algo__advantage": "dr_grpo", "algo__kl_estimator": "k3"},
        **{name: value, f"{name}__bounds": (0.7, 1e9)},
    )
    groups, learner = random_groups(), make_learner(config, moved=0.02)
    policy = plain_model(learner.model)
    tokens, reference = tokens_of(groups, policy), tokens_of(groups, random_model("llama", "eager"))
    advantage, losses = less_the_mean(groups), []
    for token, other in zip(tokens, reference, strict=True):
        rho = float((token.logprob.detach() - token.sampler_logprob).exp())
        if rho < 0.7:
            continue
        ratio, x = (token.logprob - token.logprob.detach()).exp(), token.logprob - other.logprob.detach()
        kl = (-x).exp() - 1 + x
        weight = rho if how == "masked" else 1.0
        losses.append(weight * clipped_loss(ratio, advantage(token)) - 0.2 * token.entropy + 0.3 * kl)
    assert 0 < len(losses) < len(tokens)
    by_hand = gradients_of(torch.stack(losses).sum() / len(tokens), policy)
    assert_same_gradients(gradients(learner, groups, config), by_hand)
