"""How far the learner's log-probabilities are from the sampler's, of the same tokens under the same weights."""

from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.algos.offpolicy import OFFPOLICY, offpolicy_metrics

NAMES = ("mismatch", "mismatch_p99", "mismatch_ratio", *OFFPOLICY)
LARGEST = 20.0
"""Of a sequence's summed difference, before it becomes a ratio."""


class Mismatch:
    """Collects log-probabilities where the model is; they are summed up once an optimiser step."""

    def __init__(self) -> None:
        self._logprobs: list[Tensor] = []
        self._sampler_logprobs: list[Tensor] = []
        self._counts: list[int] = []

    def add(self, logprobs: Tensor, sampler_logprobs: Tensor, counts: Sequence[int]) -> None:
        """`counts`: tokens of each sequence, in the order of the tokens."""
        self._logprobs.append(logprobs)
        self._sampler_logprobs.append(sampler_logprobs)
        self._counts += counts

    def take(self) -> dict[str, float]:
        """Return the numbers of NAMES and begin anew.

        They are the mean and the 99th percentile of the absolute difference, the mean ratio of whole sequences, and the
        off-policy metrics.
        """
        if not self._counts:
            return {}
        logprobs, sampler_logprobs = torch.cat(self._logprobs), torch.cat(self._sampler_logprobs)
        difference = logprobs - sampler_logprobs
        owners = torch.repeat_interleave(torch.tensor(self._counts)).to(difference.device)
        sums = torch.zeros(len(self._counts), device=difference.device, dtype=difference.dtype)
        ratio = sums.index_add(0, owners, difference).clamp(max=LARGEST).exp().mean()
        distance = difference.abs()
        place = max(1, round(0.99 * len(distance)))
        own = torch.stack([distance.mean(), distance.kthvalue(place).values, ratio])
        offpolicy = offpolicy_metrics(logprobs, sampler_logprobs, owners, len(self._counts))
        numbers = torch.cat([own.double(), offpolicy]).tolist()
        self._logprobs, self._sampler_logprobs, self._counts = [], [], []
        return dict(zip(NAMES, numbers, strict=True))
