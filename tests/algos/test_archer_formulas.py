"""ArCHer's formulas against loops written from the papers (Zhou et al. 2024; Kostrikov et al. 2021)."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.algos.archer import (
    calibration_metrics,
    compute_advantages,
    compute_q_targets,
    expectile_loss,
)

numbers = st.floats(-5, 5, allow_nan=False, width=32)


def rows(rng: random.Random, count: int) -> list[list[float]]:
    return [[rng.uniform(-2, 2), rng.uniform(-2, 2)] for _ in range(count)]


def test_q_targets_are_reward_plus_discounted_next_value() -> None:
    rng = random.Random(0)
    rewards = [rng.uniform(-1, 1) for _ in range(6)]
    done = [False, False, True, False, False, True]
    values = rows(rng, 6)
    expected = [
        [reward + 0.9 * (0.0 if over else 1.0) * value for value in pair]
        for reward, over, pair in zip(rewards, done, values, strict=True)
    ]
    discounts = torch.tensor([0.0 if over else 0.9 for over in done])
    found = compute_q_targets(torch.tensor(rewards), discounts, torch.tensor(values))
    torch.testing.assert_close(found, torch.tensor(expected))


@given(st.lists(numbers, min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_expectile_loss_weighs_positive_differences_by_the_expectile(
    differences: list[float], expectile: float
) -> None:
    expected = [abs(expectile - (1.0 if u < 0 else 0.0)) * u * u for u in differences]
    torch.testing.assert_close(expectile_loss(torch.tensor(differences), expectile), torch.tensor(expected))


@pytest.mark.parametrize("expectile", [0.5, 0.7, 0.9])
def test_expectile_loss_is_least_at_the_expectile(expectile: float) -> None:
    """The minimum m balances both sides: expectile * sum of (q - m) above = (1 - expectile) * sum of (m - q) below."""
    q = torch.tensor([-1.0, 0.0, 0.5, 3.0])
    candidates = torch.linspace(-1, 3, 40001)
    losses = torch.stack([expectile_loss(each - candidates, expectile) for each in q]).sum(0)
    best = float(candidates[losses.argmin()])
    above = sum(max(0.0, float(each) - best) for each in q)
    below = sum(max(0.0, best - float(each)) for each in q)
    assert expectile * above == pytest.approx((1 - expectile) * below, abs=1e-3)
    assert best >= float(q.mean()) - 1e-3, "an expectile of 0.5 or more is at least the mean"


def test_advantages_subtract_the_lower_v_from_the_lower_q() -> None:
    rng = random.Random(1)
    q, v = rows(rng, 20), rows(rng, 20)
    expected = [min(left) - min(right) for left, right in zip(q, v, strict=True)]
    torch.testing.assert_close(compute_advantages(torch.tensor(q), torch.tensor(v)), torch.tensor(expected))


def test_calibration_reports_bias_and_errors_against_returns() -> None:
    q = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 3.5]])
    v = torch.tensor([[0.5, 0.5], [1.0, 0.0], [2.0, 9.0]])
    returns = torch.tensor([0.0, 0.0, 2.0])
    found = calibration_metrics(q, v, returns)
    low_q, low_v = [1.0, -1.0, 3.0], [0.5, 0.0, 2.0]
    pairs = list(zip(low_q, low_v, returns.tolist(), strict=True))
    assert found["overestimation"] == pytest.approx(sum(left - back for left, _, back in pairs) / 3)
    assert found["q_error"] == pytest.approx(math.sqrt(sum((left - back) ** 2 for left, _, back in pairs) / 3))
    assert found["v_error"] == pytest.approx(math.sqrt(sum((right - back) ** 2 for _, right, back in pairs) / 3))
    assert found["q_mean"] == pytest.approx(1.0) and found["return_mean"] == pytest.approx(2 / 3)
    left = torch.tensor([-1.0, 1.0, -1.0])  # returns - q
    assert found["q_explained"] == pytest.approx(1 - float(left.var() / returns.var()))
    assert "q_explained" not in calibration_metrics(q, v, torch.ones(3)), "equal returns explain nothing"
