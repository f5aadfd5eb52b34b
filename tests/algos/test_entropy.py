"""Log-probabilities and entropy from logits, with gradients written by hand."""

import math

import pytest
import torch
from torch import Tensor

from turnwise.algos.entropy import MAX_ENTROPY_COEF, EntropyCoefficient, logprobs_and_entropy


def plain(logits: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """The same by plain autograd."""
    scaled = logits / temperatures[:, None]
    entropy = scaled.logsumexp(dim=-1) - (scaled.softmax(dim=-1) * scaled).sum(dim=-1)
    return scaled.log_softmax(dim=-1).gather(1, targets[:, None])[:, 0], entropy


def example(rows: int = 5, vocabulary: int = 7, scale: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = scale * torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    return logits.requires_grad_(), targets, torch.linspace(0.5, 2.0, rows, dtype=torch.float64)


def test_logprobs_and_entropy_match_autograd() -> None:
    logits, targets, temperatures = example()
    coefficients = torch.linspace(-1, 1, len(targets), dtype=torch.float64)
    gradients = []
    results = [function(logits, targets, temperatures) for function in (logprobs_and_entropy, plain)]
    for logprobs, entropy in results:
        loss = (coefficients * logprobs).sum() + (coefficients.square() * entropy).sum()
        gradients.append(torch.autograd.grad(loss, logits)[0])
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_gradients_match_finite_differences() -> None:
    logits, targets, temperatures = example()
    assert torch.autograd.gradcheck(lambda given: logprobs_and_entropy(given, targets, temperatures), (logits,))


def test_each_output_alone_has_a_gradient() -> None:
    logits, targets, temperatures = example()
    for index in range(2):
        got = torch.autograd.grad(logprobs_and_entropy(logits, targets, temperatures)[index].sum(), logits)[0]
        expected = torch.autograd.grad(plain(logits, targets, temperatures)[index].sum(), logits)[0]
        torch.testing.assert_close(got, expected)


def test_entropy_of_uniform_logits_is_log_vocabulary_size() -> None:
    logprobs, entropy = logprobs_and_entropy(torch.full((2, 8), 3.0), torch.tensor([0, 7]), torch.ones(2))
    assert entropy.tolist() == pytest.approx([math.log(8)] * 2)
    assert logprobs.tolist() == pytest.approx([-math.log(8)] * 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_logits_are_computed_in_float32(dtype: torch.dtype) -> None:
    logits, targets, temperatures = example(rows=9, vocabulary=50)
    low = logits.detach().to(dtype).requires_grad_()
    logprobs, entropy = logprobs_and_entropy(low, targets, temperatures.float())
    exact = plain(low.detach().double(), targets, temperatures)
    assert logprobs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close((logprobs.detach().double(), entropy.detach().double()), exact, rtol=1e-5, atol=1e-5)
    gradient = torch.autograd.grad(logprobs.sum(), low)[0]
    assert gradient.dtype == dtype


def test_huge_logits_stay_finite() -> None:
    logits = torch.tensor([[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4]], requires_grad=True)
    logprobs, entropy = logprobs_and_entropy(logits, torch.tensor([2, 0]), torch.tensor([0.5, 1.0]))
    gradient = torch.autograd.grad(logprobs.sum() + entropy.sum(), logits)[0]
    assert logprobs.tolist() == pytest.approx([-4e4, -math.log(3)])
    assert entropy.tolist() == pytest.approx([0.0, math.log(3)])
    assert gradient.isfinite().all()


def test_entropy_accepts_a_micro_batch_without_sampled_tokens() -> None:
    logits = torch.zeros(0, 5, requires_grad=True)
    logprobs, entropy = logprobs_and_entropy(logits, torch.zeros(0, dtype=torch.int64), torch.ones(0))
    (logprobs.sum() + entropy.sum()).backward()
    assert logprobs.shape == entropy.shape == (0,)


def test_entropy_coefficient_rises_below_the_target_and_falls_above_it() -> None:
    coefficient = EntropyCoefficient(value=0.01, least=0.001, target=0.4)
    for entropy, exponent in ((0.4, 0.0), (0.3, 0.025), (0.0, 0.1), (0.5, -0.025), (7.0, -0.1)):
        assert coefficient.update(entropy).value == pytest.approx(0.01 * math.exp(exponent))


def test_entropy_coefficient_stays_in_its_bounds() -> None:
    rising = falling = EntropyCoefficient(value=0.01, least=0.001, target=0.4)
    for _ in range(50):
        rising, falling = rising.update(0.0), falling.update(9.0)
    assert (rising.value, falling.value) == (MAX_ENTROPY_COEF, 0.001)
    assert EntropyCoefficient(value=0.5, least=0.5, target=0.4).update(0.0).value == 0.5, "the user's own is higher"


def test_entropy_coefficient_without_a_target_is_constant() -> None:
    assert EntropyCoefficient(value=0.01, least=0.01).update(0.0).value == 0.01
