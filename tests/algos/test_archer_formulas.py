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
    compute_trust,
    correct_by_returns,
    estimate_improvement,
    utterance_value_loss,
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
    torch.testing.assert_close(utterance_value_loss(torch.tensor(differences), expectile), torch.tensor(expected))


def test_value_loss_without_an_expectile_is_the_squared_error() -> None:
    assert utterance_value_loss(torch.tensor([-2.0, 0.0, 3.0]), None).tolist() == [4.0, 0.0, 9.0]


@pytest.mark.parametrize("expectile", [0.5, 0.7, 0.9])
def test_expectile_loss_is_least_at_the_expectile(expectile: float) -> None:
    """The minimum m balances both sides: expectile * sum of (q - m) above = (1 - expectile) * sum of (m - q) below."""
    q = torch.tensor([-1.0, 0.0, 0.5, 3.0])
    candidates = torch.linspace(-1, 3, 40001)
    losses = torch.stack([utterance_value_loss(each - candidates, expectile) for each in q]).sum(0)
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


def test_improvement_is_the_covariance_of_q_with_the_returns() -> None:
    """All pairs of two draws of a uniform policy with four actions, in three states; Q also errs by state."""
    rng = random.Random(2)
    true = [[rng.uniform(-2, 2) for _ in range(4)] for _ in range(3)]
    errors, baselines = [5.0, -3.0, 1.0], [0.3, -2.0, 4.0]
    judged = [[each + rng.uniform(-1, 1) + errors[state] for each in true[state]] for state in range(3)]
    expected = 0.0
    for state in range(3):
        mean_q, mean_true = sum(judged[state]) / 4, sum(true[state]) / 4
        expected += sum((judged[state][a] - mean_q) * (true[state][a] - mean_true) for a in range(4)) / 4 / 3
    draws = [(state, a, other) for state in range(3) for a in range(4) for other in range(4)]
    found, _ = estimate_improvement(
        torch.tensor([judged[state][a] for state, a, _ in draws]),
        torch.tensor([judged[state][other] for state, _, other in draws]),
        torch.tensor([true[state][a] - baselines[state] for state, a, _ in draws]),
        torch.arange(len(draws)),
    )
    assert found == pytest.approx(expected, abs=1e-5)


def test_improvement_has_the_error_of_whole_episodes() -> None:
    rng = random.Random(3)
    played, fresh, residuals = ([rng.uniform(-2, 2) for _ in range(7)] for _ in range(3))
    episodes = [4, 4, 4, 9, 9, 2, 4]
    products = [(a - b) * c for a, b, c in zip(played, fresh, residuals, strict=True)]
    mean = sum(products) / 7
    squares = 0.0
    for episode in (2, 4, 9):
        squares += sum(each - mean for each, own in zip(products, episodes, strict=True) if own == episode) ** 2
    found = estimate_improvement(*map(torch.tensor, (played, fresh, residuals)), torch.tensor(episodes))
    assert found == pytest.approx((mean, math.sqrt(squares) / 7), rel=1e-5)


def test_trust_grows_from_the_estimates_error_on() -> None:
    assert [compute_trust(each, 1.0) for each in (-3.0, 0.0, 0.5, 1.0)] == [0.0] * 4
    assert compute_trust(2.0, 1.0) == pytest.approx(0.75) and compute_trust(0.2, 0.1) == pytest.approx(0.75)
    assert compute_trust(10.0, 1.0) == pytest.approx(0.99) and compute_trust(1.0, 0.0) == 1.0
    assert compute_trust(0.0, 0.0) == 0.0, "an untrained critic"


@pytest.mark.parametrize("trust", [0.0, 0.6, 1.0])
def test_corrected_advantages_have_the_policys_gradient_with_any_critic(trust: float) -> None:
    """Expectation over two draws of a policy with three actions, against the gradient of its expected return."""
    probabilities, returns = [0.2, 0.5, 0.3], [1.0, -2.0, 3.0]
    critic, value = [4.0, 1.0, -2.0], 0.7
    mean = sum(p * g for p, g in zip(probabilities, returns, strict=True))
    expected = [p * (g - mean) for p, g in zip(probabilities, returns, strict=True)]  # with respect to the logits

    pairs = [(a, other) for a in range(3) for other in range(3)]
    fresh, played = correct_by_returns(
        torch.tensor([critic[a] for a, _ in pairs]),
        torch.tensor([critic[other] for _, other in pairs]),
        torch.tensor([returns[a] - value for a, _ in pairs]),
        trust,
    )
    gradient = [0.0, 0.0, 0.0]
    for index, (a, other) in enumerate(pairs):
        weight = probabilities[a] * probabilities[other]
        for logit, probability in enumerate(probabilities):
            gradient[logit] += weight * float(played[index]) * ((logit == a) - probability)
            gradient[logit] += weight * float(fresh[index]) * ((logit == other) - probability)
    assert gradient == pytest.approx(expected, abs=1e-5)
    assert fresh.tolist() == pytest.approx([trust * critic[other] for _, other in pairs])


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
