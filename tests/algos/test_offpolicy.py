"""Off-policy metrics against plain loops and exact divergences."""

import math
import random

import pytest
import torch

from turnwise.algos.off_policy import OFF_POLICY_METRICS, compute_off_policy_metrics


def compute(policy: list[float], sampler: list[float], owners: list[int]) -> dict[str, float]:
    found = compute_off_policy_metrics(
        torch.tensor(policy), torch.tensor(sampler), torch.tensor(owners), max(owners) + 1
    )
    return dict(zip(OFF_POLICY_METRICS, found.tolist(), strict=True))


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def test_offpolicy_metrics_equal_plain_loops() -> None:
    rng = random.Random(0)
    owners = [0, 0, 0, 1, 2, 2]
    sampler = [rng.uniform(-3, -0.1) for _ in owners]
    policy = [each + rng.gauss(0, 0.3) for each in sampler]
    differences = [p - m for p, m in zip(policy, sampler, strict=True)]

    def rows(column: list[float]) -> list[list[float]]:
        return [[value for value, owner in zip(column, owners, strict=True) if owner == row] for row in range(3)]

    ppl, ppl_sampler = ([math.exp(-mean(row)) for row in rows(column)] for column in (policy, sampler))
    assert compute(policy, sampler, owners) == pytest.approx(
        {
            "offpolicy_kl_k1": mean([-d for d in differences]),
            "offpolicy_kl_k3": mean([math.exp(d) - 1 - d for d in differences]),
            "offpolicy_ppl": mean(ppl),
            "offpolicy_ppl_sampler": mean(ppl_sampler),
            "offpolicy_ppl_ratio": mean([p / m for p, m in zip(ppl, ppl_sampler, strict=True)]),
            "offpolicy_chi2_token": mean([math.exp(2 * d) for d in differences]) - 1,
            "offpolicy_chi2_sequence": mean([math.exp(2 * sum(row)) for row in rows(differences)]) - 1,
        },
        rel=1e-5,
    )


def test_offpolicy_metrics_leave_out_empty_sequences() -> None:
    policy, sampler = [-1.0, -2.0, -0.5], [-1.1, -1.5, -0.7]
    assert compute(policy, sampler, [1, 3, 3]) == compute(policy, sampler, [0, 1, 1])


def test_both_kl_estimates_are_of_the_sampler_from_the_policy() -> None:
    """Over tokens in the sampler's proportions, which are 8 and 2 of 10, they are KL(mu | pi) exactly."""
    mu, pi = (0.8, 0.2), (0.5, 0.5)
    choices = [0] * 8 + [1] * 2
    found = compute([math.log(pi[c]) for c in choices], [math.log(mu[c]) for c in choices], list(range(10)))
    forward = sum(m * math.log(m / p) for m, p in zip(mu, pi, strict=True))
    chi2 = sum(p * p / m for m, p in zip(mu, pi, strict=True)) - 1
    assert found["offpolicy_kl_k1"] == pytest.approx(forward, rel=1e-5)
    assert found["offpolicy_kl_k3"] == pytest.approx(forward, rel=1e-5)
    assert found["offpolicy_chi2_token"] == found["offpolicy_chi2_sequence"] == pytest.approx(chi2, rel=1e-5)


def test_equal_policies_have_no_divergence() -> None:
    found = compute([-1.0, -2.0], [-1.0, -2.0], [0, 0])
    zero = {name for name, value in found.items() if value == 0}
    assert zero == {"offpolicy_kl_k1", "offpolicy_kl_k3", "offpolicy_chi2_token", "offpolicy_chi2_sequence"}
    assert found["offpolicy_ppl"] == found["offpolicy_ppl_sampler"] == pytest.approx(math.exp(1.5))
    assert found["offpolicy_ppl_ratio"] == 1


def test_offpolicy_metrics_stay_finite_for_extreme_ratios() -> None:
    assert all(math.isfinite(each) for each in compute([-1e6, -1.0], [-1.0, -1e6], [0, 1]).values())
