import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.algos.off_policy_evaluation import SMALLEST_EFFECTIVE_SIZE, estimate_value
from turnwise.algos.stats import effective_sample_size


def per_decision_by_hand(episodes: list[list[tuple[float, float]]], gamma: float) -> list[float]:
    """Precup et al. 2000, one episode at a time: (log pi - log mu, reward) of each turn."""
    found = []
    for episode in episodes:
        total, weight = 0.0, 1.0
        for k, (log_ratio, reward) in enumerate(episode):
            weight *= math.exp(log_ratio)
            total += gamma**k * weight * reward
        found.append(total)
    return found


def tensors(episodes: list[list[tuple[float, float]]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    width = max(map(len, episodes))
    padded = [[*episode, *[(99.0, 99.0)] * (width - len(episode))] for episode in episodes]
    both = torch.tensor(padded, dtype=torch.float64)
    mask = torch.tensor([[at < len(episode) for at in range(width)] for episode in episodes])
    return both[..., 0], both[..., 1], mask


@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_estimate_equals_per_decision_importance_sampling(gamma: float) -> None:
    rng = random.Random(3)
    episodes = [[(rng.gauss(0, 0.5), rng.random()) for _ in range(rng.randint(1, 4))] for _ in range(60)]
    found = estimate_value(*tensors(episodes), gamma=gamma)
    returns = per_decision_by_hand(episodes, gamma)
    mean = sum(returns) / len(returns)
    error = 1.959964 * math.sqrt(sum((each - mean) ** 2 for each in returns) / (len(returns) - 1) / len(returns))
    weights = [math.exp(sum(log_ratio for log_ratio, _ in episode)) for episode in episodes]
    assert found.value == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx((mean - error, mean + error))
    assert found.effective_size == pytest.approx(sum(weights) ** 2 / sum(each**2 for each in weights))
    assert found.behaviour == pytest.approx(
        sum(gamma**k * r for episode in episodes for k, (_, r) in enumerate(episode)) / len(episodes)
    )
    assert found.refusal is None


def test_estimate_finds_the_value_of_another_policy() -> None:
    """A bandit of two arms: mu pulls the good one with 0.3, pi with 0.6."""
    rng = random.Random(0)
    pulls = [rng.random() < 0.3 for _ in range(4000)]
    episodes = [[(math.log(0.6 / 0.3 if good else 0.4 / 0.7), float(good))] for good in pulls]
    found = estimate_value(*tensors(episodes))
    assert found.low < 0.6 < found.high
    assert found.behaviour == pytest.approx(0.3, abs=0.03)


def test_few_effective_episodes_are_refused_with_the_reason() -> None:
    episodes = [[(8.0 if number == 0 else -8.0, 1.0)] for number in range(100)]
    found = estimate_value(*tensors(episodes))
    assert found.effective_size < SMALLEST_EFFECTIVE_SIZE
    assert found.refusal is not None
    assert "100 episodes are worth only 1.0" in found.refusal
    on_policy = estimate_value(*tensors([[(0.0, 1.0)]] * 100))
    assert on_policy.effective_size == pytest.approx(100)


def test_extreme_ratios_keep_the_effective_size_finite() -> None:
    found = estimate_value(*tensors([[(-800.0, 1.0)], [(-900.0, 1.0)]]))
    assert found.effective_size == pytest.approx(1.0)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=9), st.floats(-300, 300))
def test_effective_sample_size_follows_kish_at_any_scale(logs: list[float], shift: float) -> None:
    weights = [math.exp(each) for each in logs]
    expected = sum(weights) ** 2 / sum(each * each for each in weights)
    found = effective_sample_size(torch.tensor(logs, dtype=torch.float64) + shift)
    assert found == pytest.approx(expected)
