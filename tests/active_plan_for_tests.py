"""Forward and backward passes over packed samples with either attention plan."""

from typing import Any

import torch

from models_for_tests import VOCABULARY
from turnwise.core.samples import Batch, Sample, on_device
from turnwise.data.packing import pack
from turnwise.models.forward import batch_attention
from turnwise.models.loading.load import device_of
from turnwise.training.learner import token_logprobs


def batch() -> Batch:
    """Return three samples with the same prompt, which is packed once, and two others."""
    samples = []
    for number, (length, prompt) in enumerate([(40, 1), (37, 1), (22, 1), (50, 2), (9, 3)]):
        first = torch.randint(3, VOCABULARY, (15,), generator=torch.Generator().manual_seed(prompt))
        rest = torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(100 + number))
        ids = torch.cat([first, rest])[:length]
        mask = torch.arange(length) >= min(16, length - 3)
        turn_ids = torch.where(mask, 0, -1)
        settings = {
            "turn_ids": turn_ids,
            "sampler_logprobs": torch.zeros(length),
            "temperatures": torch.full((length,), 0.7),
        }
        samples.append(Sample(trajectory=number, ids=ids, mask=mask, **settings))
    return pack(samples)


def learnt(model: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Return `gradients` of the batch above."""
    return gradients(model, batch())


def gradients(model: Any, packed: Batch) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Return log-probabilities, entropies, and the gradients of a function of both, on the CPU in float32."""
    model.requires_grad_(True)
    given = on_device(packed, device_of(model))
    with batch_attention(model, given):
        logprobs, entropy, _ = token_logprobs(model, given)
        slopes = torch.linspace(-1, 1, len(logprobs), device=logprobs.device)
        (logprobs @ slopes + 0.3 * entropy.sum()).backward()
    grads = {name: each.grad.float().cpu() for name, each in model.named_parameters() if each.grad is not None}
    return logprobs.detach().cpu(), entropy.detach().cpu(), grads


def check_equal(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours[:2], theirs[:2], atol=1e-4, rtol=1e-4)
    assert ours[2].keys() == theirs[2].keys()
    for name, grad in theirs[2].items():
        torch.testing.assert_close(ours[2][name], grad, atol=1e-4 * float(grad.abs().max()) + 1e-7, rtol=1e-3)
