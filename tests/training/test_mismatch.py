"""Sampler against learner, in numbers that a person can check."""

import math

import pytest
import torch

from turnwise.training.objective import MISMATCH_METRICS, SamplerMismatch


def test_mismatch_mean_percentile_and_sequence_ratio() -> None:
    mismatch = SamplerMismatch()
    mismatch.add(torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, -2.0, -2.0]), [2, 1])
    mismatch.add(torch.tensor([-1.0]), torch.tensor([-1.0]), [1])
    found = mismatch.take()
    assert found["mismatch"] == pytest.approx((0.5 + 0 + 1 + 0) / 4)
    assert found["mismatch_p99"] == 1.0
    assert found["mismatch_ratio"] == pytest.approx((math.exp(0.5) + math.exp(-1) + 1) / 3)
    assert found["offpolicy_kl_k1"] == pytest.approx((-0.5 + 0 + 1 + 0) / 4)
    assert found["offpolicy_ppl_sampler"] == pytest.approx((math.exp(1.75) + math.exp(2) + math.exp(1)) / 3)
    assert found["offpolicy_chi2_sequence"] == pytest.approx((math.exp(1) + math.exp(-2) + 1) / 3 - 1)
    assert found.keys() == set(MISMATCH_METRICS)
    assert mismatch.take() == {}, "taken once"


def test_mismatch_p99_ignores_one_token_in_two_hundred() -> None:
    mismatch = SamplerMismatch()
    mismatch.add(torch.zeros(200).index_fill(0, torch.tensor([7]), 9.0), torch.zeros(200), [200])
    found = mismatch.take()
    assert found["mismatch_p99"] == 0.0
    assert found["mismatch"] == pytest.approx(9 / 200)


def test_mismatch_ratio_stays_finite() -> None:
    mismatch = SamplerMismatch()
    mismatch.add(torch.full((5,), 1e6), torch.zeros(5), [5])
    assert all(math.isfinite(value) for value in mismatch.take().values())
