"""Corrections: the weights case by case, by level, and what holds for all of them."""

import math
from dataclasses import replace
from random import Random

import pytest
import torch
from choices_for_tests import choose
from hypothesis import given
from hypothesis import strategies as st
from losses_for_tests import Tokens, inputs, inputs_of, picked, run, token_batches

from turnwise.algos.loss_types import RATIO_LEVELS, LossInputs, RatioLevel, unit_ids
from turnwise.algos.losses import Ppo
from turnwise.algos.off_policy import CORRECTIONS, CorrectionResult, apply_correction

every_correction = pytest.mark.parametrize("name", CORRECTIONS)

LOG_RHOS = [0.1, 0.9, -0.2, 0.05, -0.9]
SEGMENTS = [0, 0, 0, 1, 1]
TURNS = [0, 0, 1, 1, 2]


def compute(name: str, given: LossInputs | None = None, **settings: object) -> CorrectionResult:
    """The correction of five tokens in two segments and four turns unless `given` has others."""
    tokens = given or inputs([0.3] * 5, [1.0] * 5, SEGMENTS, TURNS, LOG_RHOS)
    return choose(CORRECTIONS, name, **settings).compute(tokens)


def exps(*logs: float) -> list[float]:
    return pytest.approx([math.exp(each) for each in logs])  # type: ignore[return-value]


def test_correction_none_has_weight_one() -> None:
    assert compute("none").weights.tolist() == [1] * 5


def test_decoupled_weight_is_the_unbounded_old_to_sampler_ratio() -> None:
    found = compute("decoupled")
    assert found.weights.tolist() == exps(*LOG_RHOS)
    assert not found.outside.any()


@pytest.mark.parametrize(
    ("level", "logs"),
    [
        ("token", LOG_RHOS),
        ("turn", [1.0, 1.0, -0.2, 0.05, -0.9]),
        ("turn_mean", [0.5, 0.5, -0.2, 0.05, -0.9]),
        ("sequence", [0.8] * 3 + [-0.85] * 2),
        ("sequence_mean", [0.8 / 3] * 3 + [-0.425] * 2),
    ],
)
def test_correction_ratio_is_per_token_turn_or_sequence(level: str, logs: list[float]) -> None:
    free = {"level": level, "bounds": (0.0, 99.0)}
    assert compute("truncated", **free).weights.tolist() == exps(*logs)
    assert compute("masked", **free).weights.tolist() == exps(*LOG_RHOS), "kept tokens weigh their own"


def test_truncated_clamps_weights_and_counts_them() -> None:
    found = compute("truncated", bounds=(0.5, 2.0))
    assert found.weights.tolist() == pytest.approx([math.exp(0.1), 2.0, math.exp(-0.2), math.exp(0.05), 0.5])
    assert found.outside.tolist() == [False, True, False, False, True]


def test_masked_drops_ratios_outside_both_bounds() -> None:
    found = compute("masked", bounds=(0.5, 2.0))
    assert found.weights.tolist() == pytest.approx([math.exp(0.1), 0.0, math.exp(-0.2), math.exp(0.05), 0.0])
    assert found.outside.tolist() == [False, True, False, False, True]


def test_masked_drops_whole_turns_and_whole_sequences() -> None:
    by_turn = compute("masked", level="turn", bounds=(0.5, 2.0))
    assert by_turn.outside.tolist() == [True, True, False, False, True]
    by_sequence = compute("masked", level="sequence", bounds=(0.7, 3.0))
    assert by_sequence.outside.tolist() == [False, False, False, True, True]
    assert by_sequence.weights[:3].tolist() == exps(*LOG_RHOS[:3])
    by_mean = compute("masked", level="turn_mean", bounds=(0.5, 2.0))
    assert by_mean.outside.tolist() == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("advantage", "probability", "sampled", "kept"),
    [
        (1.0, 0.8, 0.5, False),  # a good token that rose enough
        (-1.0, 0.8, 0.5, True),  # a bad one that rose: it must come down
        (1.0, 0.2, 0.5, True),
        (-1.0, 0.2, 0.5, False),
        (1.0, 0.65, 0.5, True),  # within the difference
        (1.0, 0.1, 0.01, True),  # ten times as likely, and still rare
        (0.0, 0.9, 0.1, True),
    ],
)
def test_two_sided_drops_tokens_that_have_moved_far_enough(
    advantage: float, probability: float, sampled: float, kept: bool
) -> None:
    """The old policy lies elsewhere: what counts is the way from the sampler to the policy that learns."""
    old = math.log(0.3)
    given = inputs([math.log(probability) - old], [advantage], log_rhos=[old - math.log(sampled)], old=old)
    found = compute("two_sided", given, difference=0.2)
    assert found.weights.tolist() == [float(kept)]
    assert found.outside.tolist() == [not kept]


def test_correction_scales_loss_and_gradient_and_adds_metrics() -> None:
    given = inputs([0.1, 0.1], [1.0, -1.0], log_rhos=[3.0, 0.0])
    plain, gradient = run(Ppo(), given)
    found = compute("truncated", given)
    result = apply_correction(Ppo().compute(given), found)
    got = torch.autograd.grad(result.token_loss.sum(), given.policy_logprobs)[0]
    torch.testing.assert_close(result.token_loss, plain.token_loss * torch.tensor([2.0, 1.0]))
    torch.testing.assert_close(got, gradient * torch.tensor([2.0, 1.0]))
    assert result.metrics["correction_weight"].tolist() == [2.0, 1.0]
    assert result.metrics["correction_outside"].tolist() == [1.0, 0.0]
    assert result.metrics.keys() > plain.metrics.keys()


@every_correction
@given(token_batches())
def test_correction_is_one_if_the_sampler_is_the_old_policy(name: str, tokens: Tokens) -> None:
    exact = replace(tokens, log_rhos=[0.0] * len(tokens.log_rhos), log_ratios=[0.0] * len(tokens.log_ratios))
    for level in RATIO_LEVELS:
        found = compute(name, inputs_of(exact), level=level, bounds=(0.5, 2.0))
        assert (found.weights == 1).all() and not found.outside.any()


@every_correction
@pytest.mark.parametrize("level", RATIO_LEVELS)
@given(tokens=token_batches(), random=st.randoms(use_true_random=False))
def test_correction_is_independent_of_order_and_micro_batches(
    name: str, level: RatioLevel, tokens: Tokens, random: Random
) -> None:
    given = inputs_of(tokens)
    whole = compute(name, given, level=level, bounds=(0.5, 2.0))
    everyone = list(range(len(tokens.segments)))
    random.shuffle(everyone)
    cut = random.randint(0, 3)
    for part in (everyone, [i for i in everyone if tokens.segments[i] < cut]):
        chosen = torch.tensor(part, dtype=torch.int64)
        got = compute(name, picked(given, chosen), level=level, bounds=(0.5, 2.0))
        torch.testing.assert_close(got.weights, whole.weights[chosen])
        assert torch.equal(got.outside, whole.outside[chosen])


@given(token_batches())
def test_units_of_a_level_cover_every_token_and_nest(tokens: Tokens) -> None:
    segments, turns = torch.tensor(tokens.segments), torch.tensor(tokens.turns)
    units = {level: unit_ids(segments, turns, level) for level in RATIO_LEVELS}
    assert all(each.shape == segments.shape for each in units.values())
    assert len(set(units["token"].tolist())) == len(segments)
    assert len(set(units["turn"].tolist())) == len(set(zip(tokens.segments, tokens.turns, strict=True)))
    assert len(set(units["sequence"].tolist())) == len(set(tokens.segments))


@every_correction
def test_weights_have_no_gradient_and_stay_finite(name: str) -> None:
    given = inputs([0.0, 0.0], [1.0, -1.0], log_rhos=[500.0, -500.0], old=-600.0)
    weights = compute(name, given).weights
    assert weights.isfinite().all() and not weights.requires_grad
