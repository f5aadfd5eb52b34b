"""How far the learner's log-probabilities are from the sampler's, of the same tokens under the same weights."""

from collections.abc import Sequence

import torch
from torch import Tensor

NAMES = ("mismatch", "mismatch_p99", "mismatch_ratio")
LARGEST = 20.0
"""Of a sequence's summed difference, before it becomes a ratio."""


class Mismatch:
    """Collects differences where the model is; they are summed up once an optimiser step."""

    def __init__(self) -> None:
        self._differences: list[Tensor] = []
        self._counts: list[int] = []

    def add(self, logprobs: Tensor, sampler_logprobs: Tensor, counts: Sequence[int]) -> None:
        """`counts`: tokens of each sequence, in the order of the tokens."""
        self._differences.append(logprobs - sampler_logprobs)
        self._counts += counts

    def take(self) -> dict[str, float]:
        """The mean and the 99th percentile of the absolute difference, and the mean ratio of whole sequences; anew."""
        if not self._counts:
            return {}
        difference = torch.cat(self._differences)
        owners = torch.repeat_interleave(torch.tensor(self._counts)).to(difference.device)
        sums = torch.zeros(len(self._counts), device=difference.device, dtype=difference.dtype)
        ratio = sums.index_add(0, owners, difference).clamp(max=LARGEST).exp().mean()
        distance = difference.abs()
        place = max(1, round(0.99 * len(distance)))
        numbers = torch.stack([distance.mean(), distance.kthvalue(place).values, ratio]).tolist()
        self._differences, self._counts = [], []
        return dict(zip(NAMES, numbers, strict=True))
