"""The output head's Triton kernel against its torch reference, on a GPU or under Triton's interpreter."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import NoReturn

import pytest
import torch

from turnwise.models.head import logprob_statistics

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("vocabulary", [7, 512, 4097, 9000])
def test_logprob_kernel_matches_torch(vocabulary: int, optional_part: Callable[[str], NoReturn]) -> None:
    if find_spec("triton") is None:
        optional_part("triton is not installed, which comes for Linux only")
    from turnwise.models import head_kernel

    chance = torch.Generator().manual_seed(0)
    logits = (torch.randn(5, vocabulary, generator=chance) * 8).to(DEVICE)
    logits[0] -= 500  # sums overflow or underflow unless the maximum is subtracted
    logits[1] += 500
    logits[2] = logits[2].sort().values  # the maximum grows in every block
    targets = torch.tensor([0, vocabulary - 1, 3, 4, 5], device=DEVICE)
    temperatures = torch.tensor([1.0, 0.5, 1.0, 2.0, 1.0], device=DEVICE)
    logprobs = (logits.double() / temperatures[:, None]).log_softmax(dim=-1)
    picked = logprobs[torch.arange(5), targets]
    truth = picked, -(logprobs.exp() * logprobs).sum(dim=-1), (logits.double() / temperatures[:, None]).logsumexp(-1)
    for function in (head_kernel.logprob_statistics, logprob_statistics):
        for ours, true in zip(function(logits, targets, temperatures), truth, strict=True):
            torch.testing.assert_close(ours.double(), true, atol=2e-4, rtol=1e-6)
    assert [len(column) for column in head_kernel.logprob_statistics(logits[:0], targets[:0], temperatures[:0])] == [
        0,
        0,
        0,
    ]
