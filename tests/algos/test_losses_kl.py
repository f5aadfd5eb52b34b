"""The value loss and the KL: by value and gradient, in the reward, and its adaptive weight."""

import math
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from turnwise.algos.kl import KL_ESTIMATORS, KlCoefficient, subtract_kl
from turnwise.algos.losses import value_loss


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
def test_value_loss_matches_hand_computed_values(
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


def test_subtract_kl_changes_sampled_tokens_only() -> None:
    rewards = torch.tensor([[0.0, 1.0, 5.0], [2.0, 0.0, 0.0]])
    kl = torch.tensor([[0.5, -1.0, 9.0], [9.0, 2.0, 0.0]])
    mask = torch.tensor([[True, True, False], [False, True, True]])
    got = subtract_kl(rewards, kl, mask, 0.5)
    assert got.tolist() == [[-0.25, 1.5, 0.0], [0.0, -1.0, 0.0]]


@pytest.mark.parametrize(
    ("kl", "after"), [(0.1, 0.2), (0.11, 0.202), (0.09, 0.198), (5.0, 0.204), (0.0, 0.196), (-1.0, 0.196)]
)
def test_adaptive_kl_coefficient_follows_its_target(kl: float, after: float) -> None:
    coefficient = KlCoefficient(value=0.2, target=0.1, horizon=1000)
    assert coefficient.update(kl, 100).value == pytest.approx(after)
    assert coefficient.value == 0.2


def test_kl_coefficient_without_a_target_is_constant() -> None:
    assert KlCoefficient(value=0.2).update(99.0, 1000).value == 0.2
