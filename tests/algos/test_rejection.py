"""Rejection by a pooled statistic and by a veto, against plain loops."""

import math
import random

import pytest
import torch
from choices_for_tests import choose
from losses_for_tests import inputs, picked, run

from turnwise.algos.loss_types import RATIO_LEVELS, LossInputs, RatioLevel
from turnwise.algos.losses import Ppo
from turnwise.algos.off_policy import (
    CORRECTIONS,
    REJECTIONS,
    Decoupled,
    NoRejection,
    RejectSegments,
    RejectTokens,
    RejectTurns,
    Truncated,
    Veto,
    apply_correction,
    apply_rejection,
)

STATISTICS = {
    "ratio": lambda log_rho: log_rho,
    "k2": lambda log_rho: log_rho**2 / 2,
    "k3": lambda log_rho: math.exp(log_rho) - 1 - log_rho,
}
POOLS = {"sum": sum, "mean": lambda each: sum(each) / len(each), "max": max}


def some_tokens(seed: int) -> tuple[LossInputs, list[float], list[tuple[int, int]]]:
    """Tokens, their log-ratios to the sampler, and the segment and turn of each."""
    rng = random.Random(seed)
    owners = [(segment, turn) for segment in range(4) for turn in range(rng.randint(1, 3)) for _ in range(3)]
    log_rhos = [rng.gauss(0, 0.4) for _ in owners]
    segments, turns = [each[0] for each in owners], [each[1] for each in owners]
    given = inputs([rng.gauss(0, 0.2) for _ in owners], [1.0] * len(owners), segments, turns, log_rhos)
    return given, log_rhos, owners


def unit(owner: tuple[int, int], index: int, level: str) -> tuple[int, ...]:
    return {"token": (index,), "turn": owner, "sequence": owner[:1]}[level]


@pytest.mark.parametrize(
    ("level", "statistic", "pool"),
    [
        (level, statistic, pool)
        for level in RATIO_LEVELS
        for statistic in STATISTICS
        for pool in (POOLS if level != "token" else ["mean"])  # one token's statistic needs no pool
        if (statistic, pool) != ("ratio", "max")
    ],
)
def test_rejection_uses_the_pooled_statistic_of_a_unit(level: RatioLevel, statistic: str, pool: str) -> None:
    seen = set()
    for seed in range(6):
        given, log_rhos, owners = some_tokens(seed)
        low, high = (0.8, 1.25) if statistic == "ratio" else (0.07, 0.6)
        rejection = choose(REJECTIONS, level, statistic=statistic, pool=pool, bounds=(low, high))
        units = [unit(owner, index, level) for index, owner in enumerate(owners)]
        expected = []
        for own in units:
            terms = [
                STATISTICS[statistic](log_rho) for log_rho, each in zip(log_rhos, units, strict=True) if each == own
            ]
            pooled = POOLS[pool](terms)
            pooled = math.exp(pooled) if statistic == "ratio" else pooled
            expected.append(pooled < low or pooled > high)
        assert rejection.rejected(given).tolist() == expected
        seen |= set(expected)
    assert seen == {True, False}


def test_veto_rejects_the_sequence_of_one_bad_token() -> None:
    given = inputs([0.0] * 5, [1.0] * 5, [0, 0, 0, 1, 1], [0, 0, 1, 0, 0], [0.1, 0.2, -9.3, -9.1, 3.0])
    assert Veto().rejected(given).tolist() == [True] * 3 + [False] * 2
    assert not NoRejection().rejected(given).any()


@pytest.mark.parametrize("kind", [RejectTurns, RejectSegments])
def test_largest_ratio_of_a_unit_is_refused(kind: type[RejectTurns]) -> None:
    with pytest.raises(ValueError, match="pool max does not see ratios below 1"):
        kind(pool="max")
    assert kind(pool="max", statistic="k3")


def test_rejection_k3_is_unbounded() -> None:
    given = inputs([0.0], [1.0], log_rhos=[6.0])
    assert RejectTokens(statistic="k3", bounds=(0.0, 300.0)).rejected(given).all()


@pytest.mark.parametrize("direction", [1, -1])
def test_k3_measures_the_divergence_of_the_sampler_from_the_old_policy(direction: int) -> None:
    """Over tokens in the sampler's proportions the mean of k3 is KL(mu | pi_old), exactly, and not the reverse."""
    mu, pi = ((0.8, 0.2), (0.5, 0.5))[::direction]
    choices = [0] * round(10 * mu[0]) + [1] * round(10 * mu[1])
    given = inputs([0.0] * 10, [1.0] * 10, log_rhos=[math.log(pi[each] / mu[each]) for each in choices])
    divergence = sum(m * math.log(m / p) for m, p in zip(mu, pi, strict=True))
    below, above = (RejectSegments(statistic="k3", bounds=(0.0, divergence * factor)) for factor in (0.999, 1.001))
    assert below.rejected(given).all() and not above.rejected(given).any()


def test_rejected_tokens_get_no_gradient_and_others_keep_theirs() -> None:
    given, _, _ = some_tokens(0)
    rejected = RejectTurns(bounds=(0.8, 1.25)).rejected(given)
    assert rejected.any() and not rejected.all()
    plain, gradient = run(Ppo(), given)
    result = apply_rejection(plain, rejected)
    loss = apply_rejection(Ppo().compute(given), rejected).token_loss.sum()
    found = torch.autograd.grad(loss, given.policy_logprobs)[0]
    assert torch.equal(found, gradient.masked_fill(rejected, 0.0))
    assert torch.equal(result.token_loss, plain.token_loss.masked_fill(rejected, 0.0))
    assert torch.equal(result.metrics["rejected"], rejected.double())


@pytest.mark.parametrize("level", RATIO_LEVELS)
def test_rejection_is_independent_of_micro_batches(level: RatioLevel) -> None:
    given, _, owners = some_tokens(3)
    rejection = choose(REJECTIONS, level, statistic="k2", pool="max", bounds=(0.0, 0.1))
    whole = rejection.rejected(given)
    for segment in range(4):
        own = torch.tensor([index for index, owner in enumerate(owners) if owner[0] == segment])
        assert torch.equal(rejection.rejected(picked(given, own)), whole[own])


@pytest.mark.parametrize("level", RATIO_LEVELS)
def test_normalised_weights_have_mean_one_over_their_units(level: RatioLevel) -> None:
    given, _, owners = some_tokens(1)
    trained = torch.tensor([index % 5 != 0 for index in range(len(owners))])
    correction = Truncated(level=level, bounds=(0.0, 1.3), normalise=True)
    scale = correction.scale(given, trained)
    weights = correction.compute(given).weights.tolist()
    units = {unit(owner, index, level): index for index, owner in enumerate(owners) if trained[index]}
    assert scale == pytest.approx(len(units) / sum(weights[index] for index in units.values()))
    result = apply_correction(Ppo().compute(given), correction.compute(given), scale)
    assert result.metrics["correction_weight"].tolist() == pytest.approx([scale * each for each in weights])


def test_decoupled_weights_are_normalised_by_tokens() -> None:
    given, log_rhos, owners = some_tokens(2)
    everything = torch.ones(len(owners), dtype=torch.bool)
    mean = sum(map(math.exp, log_rhos)) / len(log_rhos)
    assert Decoupled(normalise=True).scale(given, everything) == pytest.approx(1 / mean)


@pytest.mark.parametrize(
    ("name", "normalise", "share"), [("truncated", False, 1.0), ("masked", True, 1.0), ("truncated", True, 0.0)]
)
def test_weights_are_unchanged_if_there_is_nothing_to_normalise(name: str, normalise: bool, share: float) -> None:
    given, _, owners = some_tokens(2)
    trained = torch.full((len(owners),), share > 0)
    assert choose(CORRECTIONS, name, normalise=normalise).scale(given, trained) == 1.0
