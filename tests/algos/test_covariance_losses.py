"""clip_cov and kl_cov: which tokens they select, and what becomes of these, against plain loops."""

import math
import random
from dataclasses import replace

import pytest
import torch
from choices_for_tests import choose
from losses_for_tests import inputs, run
from torch import Tensor

from turnwise.algos.loss_types import Loss, LossInputs
from turnwise.algos.losses import LOSSES, ClipCov, KlCov, Ppo

NO_DRAWS = torch.zeros(0)


def some_tokens(count: int, seed: int = 0) -> LossInputs:
    rng = random.Random(seed)
    return inputs(
        log_ratios=[rng.gauss(0, 0.5) for _ in range(count)],
        advantages=[rng.gauss(0, 2) for _ in range(count)],
        segments=[index // 4 for index in range(count)],
    )


def covariances(given: LossInputs) -> list[float]:
    advantages, logprobs = given.advantages.tolist(), given.policy_logprobs.tolist()
    mean_a, mean_p = sum(advantages) / len(advantages), sum(logprobs) / len(logprobs)
    return [(a - mean_a) * (p - mean_p) for a, p in zip(advantages, logprobs, strict=True)]


def clipped_by_ppo(given: LossInputs, loss: ClipCov) -> list[bool]:
    ratios = [
        math.exp(new - old)
        for new, old in zip(given.policy_logprobs.tolist(), given.old_logprobs.tolist(), strict=True)
    ]
    return [
        (a > 0 and r > 1 + loss.clip_high) or (a < 0 and r < 1 - loss.clip_low)
        for a, r in zip(given.advantages.tolist(), ratios, strict=True)
    ]


def uniform(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.0001, 0.1, 1.0])
def test_clip_cov_selects_the_smallest_draws_in_the_band(seed: int, share: float) -> None:
    given, draws = some_tokens(60, seed), uniform(60, seed)
    loss = choose(LOSSES, "clip_cov", share=share, low=-0.5, high=0.5)
    covariance, clipped = covariances(given), clipped_by_ppo(given, loss)
    band = [index for index in range(60) if -0.5 < covariance[index] < 0.5 and not clipped[index]]
    assert any(clipped) and len(band) > 6, "the band leaves some out"
    expected = sorted(band, key=lambda index: draws[index].item())[: max(1, int(share * 60))]
    assert loss.select(given, draws).nonzero()[:, 0].tolist() == sorted(expected)


def test_clip_cov_selects_nothing_outside_an_empty_band() -> None:
    assert not choose(LOSSES, "clip_cov", share=1.0, low=100.0, high=200.0).select(some_tokens(20), uniform(20)).any()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.0001, 0.1, 1.0])
def test_kl_cov_selects_the_largest_covariances(seed: int, share: float) -> None:
    given = some_tokens(60, seed)
    covariance = covariances(given)
    expected = sorted(range(60), key=lambda index: -covariance[index])[: max(1, int(share * 60))]
    found = KlCov(share=share).select(given, NO_DRAWS)
    assert found.nonzero()[:, 0].tolist() == sorted(expected)


def test_clip_cov_zeroes_gradients_of_selected_tokens_only() -> None:
    given = some_tokens(40)
    selected = uniform(40) < 0.3
    result, gradient = run(ClipCov(), replace(given, selected=selected))
    ppo, ppo_gradient = run(Ppo(dual_clip=None), given)
    assert (ppo_gradient[selected] != 0).any()
    assert (gradient[selected] == 0).all() and (result.token_loss[selected] == 0).all()
    assert torch.equal(gradient[~selected], ppo_gradient[~selected])
    assert torch.equal(result.token_loss[~selected], ppo.token_loss[~selected])
    assert torch.equal(result.metrics["cov_fraction"], selected.double())


def test_kl_cov_penalises_selected_tokens_only() -> None:
    given = some_tokens(40)
    selected = uniform(40) < 0.3
    result, gradient = run(choose(LOSSES, "kl_cov", coef=0.5), replace(given, selected=selected))
    for index in range(40):
        advantage, log_ratio = (
            given.advantages[index].item(),
            (given.policy_logprobs - given.old_logprobs)[index].item(),
        )
        penalty, slope = (0.5 * abs(log_ratio), 0.5 * math.copysign(1, log_ratio)) if selected[index] else (0.0, 0.0)
        assert result.token_loss[index].item() == pytest.approx(-advantage * math.exp(log_ratio) + penalty)
        assert gradient[index].item() == pytest.approx(-advantage * math.exp(log_ratio) + slope)


def test_kl_cov_has_no_penalty_gradient_on_policy() -> None:
    given = inputs([0.0, 0.0, 0.0], [0.0, 1.0, -1.0])
    _, gradient = run(KlCov(), replace(given, selected=torch.ones(3, dtype=torch.bool)))
    assert gradient.tolist() == [0.0, -1.0, 1.0]


@pytest.mark.parametrize("loss", [ClipCov(), KlCov()])
def test_covariance_loss_rejects_tokens_without_a_selection(loss: Loss) -> None:
    with pytest.raises(ValueError, match="whole optimizer step"):
        loss.compute(some_tokens(4))


@pytest.mark.parametrize("loss", [ClipCov(), KlCov()])
def test_selection_over_no_tokens_is_empty(loss: Loss) -> None:
    assert loss.select(inputs([], []), NO_DRAWS).shape == (0,)
