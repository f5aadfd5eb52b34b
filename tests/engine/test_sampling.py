import pytest
import torch

from turnwise.core.protocols import Sampling
from turnwise.engine.cpu.sampling import SamplingTensors, sample, truncate, uniforms


def draws(logits: torch.Tensor, setting: Sampling, count: int = 40_000) -> torch.Tensor:
    numbers = uniforms(torch.full((count,), 123456789), torch.arange(count))
    tokens, _ = sample(logits.expand(count, -1), SamplingTensors.of([setting] * count), numbers)
    return torch.bincount(tokens, minlength=logits.shape[-1]) / count


def test_uniforms_are_pinned() -> None:
    """A change here makes earlier runs irreproducible."""
    numbers = uniforms(torch.tensor([0, 1, 2**62 - 1]), torch.tensor([0, 7, 10_000]))
    state = [(a + (c + 1) * 0x9E3779B97F4A7C15) % 2**64 for a, c in ((0, 0), (1, 7), (2**62 - 1, 10_000))]
    for number, word in zip(numbers.tolist(), state, strict=True):
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
        word ^= word >> 31
        assert number == ((word >> 41) % 2**23 + 0.5) / 2**23


def test_uniforms_are_uniform_over_counters_and_addresses() -> None:
    count = 50_000
    for numbers in (
        uniforms(torch.full((count,), 42), torch.arange(count)),
        uniforms(torch.arange(count) * 977, torch.zeros(count, dtype=torch.long)),
    ):
        assert numbers.min() > 0 and numbers.max() < 1
        shares = torch.histc(numbers, bins=20, min=0, max=1) / count
        assert (shares - 0.05).abs().max() < 0.005


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sample_follows_the_probabilities(temperature: float) -> None:
    logits = torch.tensor([0.0, 1.0, -2.0, 3.0, -float("inf")])
    shares = draws(logits, Sampling(max_tokens=1, temperature=temperature))
    torch.testing.assert_close(shares, (logits / temperature).softmax(-1), atol=0.01, rtol=0)
    assert shares[4] == 0


def test_sample_logprobs_are_before_truncation() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    rows = SamplingTensors.of([Sampling(max_tokens=1, top_k=1)])
    token, logprob = sample(logits, rows, torch.tensor([0.001]))
    assert token.item() == 2
    torch.testing.assert_close(logprob, logits.log_softmax(-1)[:, 2])


def test_truncate_applies_top_p_and_top_k() -> None:
    probabilities = torch.tensor([[0.1, 0.5, 0.15, 0.25]] * 4)
    top_p, top_k = torch.tensor([0.7, 1.0, 0.01, 1.0]), torch.tensor([0, 2, 0, 0])
    kept = truncate(probabilities, top_p, top_k) > 0
    assert kept.tolist() == [
        [False, True, False, True],
        [False, True, False, True],
        [False, True, False, False],
        [True, True, True, True],
    ]


def test_sample_with_the_largest_number_picks_a_possible_token() -> None:
    logits = torch.tensor([[1.0, 0.5, -float("inf"), -float("inf")]]).expand(1000, -1) + torch.rand(1000, 1)
    rows = SamplingTensors.of([Sampling(max_tokens=1)] * 1000)
    tokens, logprobs = sample(logits, rows, torch.full((1000,), 1.0))
    assert int(tokens.max()) <= 1
    assert logprobs.isfinite().all()
