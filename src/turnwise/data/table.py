"""The sampled tokens of a step as a table, a row a trajectory, for advantages that run over whole trajectories.

samples (segments)      s s a a s a a | s a a        one trajectory of two segments
its row of the table    a a a a a a                  sampled tokens only, in order, across segments
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.core.samples import Sample


class TokenTable:
    def __init__(self, samples: Sequence[Sample], num_trajectories: int) -> None:
        self.samples = samples
        counts = torch.zeros(num_trajectories, dtype=torch.long)
        rows, columns = [], []
        for sample in samples:
            size = int(sample.mask.sum())
            start = int(counts[sample.trajectory])
            rows.append(torch.full((size,), sample.trajectory))
            columns.append(torch.arange(start, start + size))
            counts[sample.trajectory] += size
        self.counts = counts  # [B]
        self.rows, self.columns = torch.cat(rows), torch.cat(columns)  # [K] each sampled token's place
        self.shape = num_trajectories, int(counts.max())
        self.mask = torch.arange(self.shape[1]) < counts[:, None]  # [B, S]
        self.turn_ids = self.matrix([sample.turn_ids[sample.mask] for sample in samples], fill=-1)  # [B, S]

    def matrix(self, per_sample: Sequence[Tensor], fill: float = 0) -> Tensor:
        """One value for each sampled token, sample by sample -> [B, S]."""
        flat = torch.cat(list(per_sample))
        out = torch.full(self.shape, fill, dtype=flat.dtype)
        out[self.rows, self.columns] = flat
        return out

    def spread(self, matrix: Tensor) -> list[Tensor]:
        """[B, S] -> one tensor a sample, of the sample's length, 0 where nothing was sampled."""
        flat = matrix[self.rows, self.columns]
        sizes = [int(sample.mask.sum()) for sample in self.samples]
        return [place(sample, part) for sample, part in zip(self.samples, flat.split(sizes), strict=True)]


def place(sample: Sample, values: Tensor) -> Tensor:
    """Values of the sampled tokens at their places in the sample, 0 elsewhere."""
    out = torch.zeros(len(sample), dtype=values.dtype)
    out[sample.mask] = values
    return out
