"""Table of a step's sampled tokens, one row per trajectory, for advantages over whole trajectories.

samples (segments)      s s a a s a a | s a a        one trajectory of two segments
its row of the table    a a a a a a                  sampled tokens only, in order, across segments
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from turnwise.core.samples import Sample


class TokenTable:
    def __init__(self, samples: Sequence[Sample], num_trajectories: int) -> None:
        self.samples = samples
        counts = [0] * num_trajectories
        starts, sizes = [], count_sampled(samples)
        for sample, size in zip(samples, sizes, strict=True):
            starts.append(counts[sample.trajectory])
            counts[sample.trajectory] += size
        self.counts = torch.tensor(counts)  # [B]
        each = torch.tensor(sizes)
        before = torch.tensor(starts) - (each.cumsum(0) - each)
        self.rows = torch.tensor([sample.trajectory for sample in samples]).repeat_interleave(each)
        self.columns = torch.arange(len(self.rows)) + before.repeat_interleave(each)  # [K] column of each sampled token
        self.shape = num_trajectories, max(counts)
        self.mask = torch.arange(self.shape[1]) < self.counts[:, None]  # [B, S]

    def to_matrix(self, per_sample: Sequence[Tensor], fill: float = 0) -> Tensor:
        """Values of the sampled tokens, sample by sample -> [B, S]."""
        flat = torch.cat(list(per_sample))
        out = torch.full(self.shape, fill, dtype=flat.dtype)
        out[self.rows, self.columns] = flat
        return out

    def scatter(self, matrix: Tensor) -> list[Tensor]:
        """[B, S] -> one tensor per sample, of its length, 0 where the mask is 0."""
        return scatter_sampled(self.samples, matrix[self.rows, self.columns])


def scatter_sampled(samples: Sequence[Sample], values: Tensor) -> list[Tensor]:
    """Scatter values of all sampled tokens to their positions, 0 elsewhere: one tensor per sample."""
    mask = torch.cat([sample.mask for sample in samples])
    out = torch.zeros(len(mask), dtype=values.dtype).masked_scatter_(mask, values)
    return list(out.split([len(sample) for sample in samples]))


def gather_sampled(samples: Sequence[Sample], columns: Sequence[Tensor]) -> Tensor:
    """Gather the sampled tokens' values from one tensor per sample. [K]"""
    return torch.cat(list(columns))[torch.cat([sample.mask for sample in samples])]


def count_sampled(samples: Sequence[Sample]) -> list[int]:
    """Number of sampled tokens per sample."""
    return [int(np.count_nonzero(sample.mask.numpy())) for sample in samples]
