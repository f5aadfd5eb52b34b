"""The policy loss, the value loss and the KL, by value and by gradient."""

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from turnwise.algos.kl import KL_ESTIMATORS
from turnwise.algos.losses import LOSSES, LossInputs, LossParams, LossResult
from turnwise.algos.values import value_loss

PARAMS = LossParams(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
properties = settings(max_examples=40, deadline=None)
numbers = st.floats(-3, 3)


def ppo(ratio: float, advantage: float, params: LossParams = PARAMS) -> tuple[LossResult, float]:
    """The result for one token of this ratio, and the gradient of its loss by its log-probability."""
    logprobs = torch.tensor([math.log(ratio) - 1.0], dtype=torch.float64, requires_grad=True)
    inputs = LossInputs(
        logprobs=logprobs,
        old_logprobs=torch.tensor([-1.0], dtype=torch.float64),
        advantages=torch.tensor([advantage], dtype=torch.float64),
    )
    result = LOSSES["ppo"](inputs, params)
    return result, torch.autograd.grad(result.token_loss.sum(), logprobs)[0].item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped", "bounded"),
    [
        (1.0, 2.0, -2.0, -2.0, 0, 0),
        (1.1, 2.0, -2.2, -2.2, 0, 0),
        (1.5, 2.0, -2.56, 0.0, 1, 0),  # above 1 + clip_high: no more to gain
        (0.5, 2.0, -1.0, -1.0, 0, 0),  # a good token became rarer: full gradient
        (0.5, -2.0, 1.6, 0.0, 1, 0),  # below 1 - clip_low: no more to gain
        (1.5, -2.0, 3.0, 3.0, 0, 0),  # a bad token became likelier: full gradient
        (3.5, -2.0, 6.0, 0.0, 0, 1),  # dual clip
        (3.5, 2.0, -2.56, 0.0, 1, 0),
    ],
)
def test_ppo_case_by_case(
    ratio: float, advantage: float, loss: float, gradient: float, clipped: int, bounded: int
) -> None:
    result, got = ppo(ratio, advantage)
    assert result.token_loss.item() == pytest.approx(loss)
    assert got == pytest.approx(gradient)
    assert result.metrics["clip_fraction"].item() == clipped
    assert result.metrics["clip_fraction_low"].item() == bounded
    assert result.metrics["ratio"].item() == pytest.approx(ratio)
    assert result.metrics["approx_kl"].item() == pytest.approx(-math.log(ratio))
    assert not any(metric.requires_grad for metric in result.metrics.values())


def test_without_dual_clip_the_loss_has_no_bound() -> None:
    result, gradient = ppo(3.5, -2.0, LossParams(clip_low=0.2, clip_high=0.28, dual_clip=None))
    assert result.token_loss.item() == pytest.approx(7.0)
    assert gradient == pytest.approx(7.0)
    assert result.metrics["clip_fraction_low"].item() == 0


def test_a_ratio_beyond_all_bounds_stays_finite() -> None:
    result, gradient = ppo(math.exp(300), -1.0, LossParams(clip_low=0.2, clip_high=0.28, dual_clip=None))
    assert result.token_loss.item() == pytest.approx(math.exp(20))
    assert gradient == 0
    assert result.metrics["approx_kl"].item() == -20


@properties
@given(numbers, st.floats(-2, 2))
def test_on_policy_the_gradient_is_the_policy_gradient(logprob: float, advantage: float) -> None:
    logprobs = torch.tensor([logprob], dtype=torch.float64, requires_grad=True)
    inputs = LossInputs(
        logprobs=logprobs, old_logprobs=logprobs.detach(), advantages=torch.tensor([advantage], dtype=torch.float64)
    )
    LOSSES["ppo"](inputs, PARAMS).token_loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(-advantage)


def test_losses_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        LossInputs(logprobs=torch.zeros(3), old_logprobs=torch.zeros(3), advantages=torch.zeros(3, 1))


def values_at(value: float, old: float, target: float) -> tuple[float, float, float]:
    """Loss, clipped and gradient of one value."""
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    old_values, returns = (torch.tensor([number], dtype=torch.float64) for number in (old, target))
    token_loss, clipped = value_loss(values, old_values, returns, 0.5)
    gradient: Tensor = torch.autograd.grad(token_loss.sum(), values)[0]
    return token_loss.item(), clipped.item(), gradient.item()


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "clipped", "gradient"),
    [
        (1.25, 1.0, 2.0, 0.28125, 0, -0.75),
        (2.0, 1.0, 2.0, 0.125, 1, 0.0),  # moved further than the clip allows, towards the target: no gradient
        (0.0, 1.0, 2.0, 2.0, 0, -2.0),  # moved away from the target: full gradient
        (0.0, 1.0, 0.0, 0.125, 1, 0.0),
    ],
)
def test_value_loss_case_by_case(
    value: float, old: float, target: float, loss: float, clipped: int, gradient: float
) -> None:
    assert values_at(value, old, target) == pytest.approx((loss, clipped, gradient))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_inside_the_clip_never_count_as_clipped(dtype: torch.dtype) -> None:
    """Not even by rounding, which hundreds of random numbers would show."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, 3000, generator=generator, dtype=dtype)
    values, old, returns = drawn[:, (drawn[0] - drawn[1]).abs() < 0.49]
    token_loss, clipped = value_loss(values, old, returns, 0.5)
    assert not clipped.any()
    assert torch.equal(token_loss, 0.5 * (values - returns).square())


@pytest.mark.parametrize(
    ("name", "value", "gradient"),
    [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5)), ("abs", 0.5, 1.0)],
)
def test_kl_by_value_and_gradient(name: str, value: float, gradient: float) -> None:
    logprobs = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    estimate = KL_ESTIMATORS[name](logprobs, torch.tensor([-1.5], dtype=torch.float64))
    estimate.sum().backward()
    assert logprobs.grad is not None
    assert (estimate.item(), logprobs.grad.item()) == pytest.approx((value, gradient))


@properties
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_k1_and_k3_have_the_kl_as_their_mean(logits: list[float], random: Random) -> None:
    """Logits within 2 of each other: k3 stays below its clamp."""
    policy = torch.tensor(logits, dtype=torch.float64).log_softmax(dim=0)
    random.shuffle(logits)
    reference = torch.tensor(logits, dtype=torch.float64).log_softmax(dim=0)
    exact = (policy.exp() * (policy - reference)).sum().item()
    for name in ("k1", "k3"):
        mean = (policy.exp() * KL_ESTIMATORS[name](policy, reference)).sum().item()
        assert mean == pytest.approx(exact, abs=1e-9)


def test_k3_of_a_far_token_is_flat_and_finite() -> None:
    logprobs = torch.tensor([-200.0, 0.0], requires_grad=True)
    estimate = KL_ESTIMATORS["k3"](logprobs, torch.tensor([0.0, -200.0]))
    estimate.sum().backward()
    assert estimate.tolist() == [10.0, 10.0]
    assert logprobs.grad is not None and logprobs.grad.tolist() == [0.0, 0.0]
