"""Aggregation: how token losses become one number, as a weight for each token.

The loss is the sum over tokens of weight * token loss. Weights are taken once over all tokens of an optimiser step,
so micro-batches, packing and ranks add up to the same sum however the step is cut. A sequence is a trajectory; one
without a sampled token has no entry here and never counts.
"""

from typing import Protocol

import torch
from torch import Tensor


class Aggregation(Protocol):
    def __call__(self, sequences: Tensor, constant_length: float, dtype: torch.dtype = torch.float32) -> Tensor:
        """Weights [M] from the trajectory [M] int64 of each sampled token of the optimiser step."""
        ...


def token_mean(sequences: Tensor, constant_length: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Every token counts the same: long trajectories weigh more."""
    return _ones(sequences, dtype) / max(1, sequences.shape[0])


def seq_mean_token_sum(sequences: Tensor, constant_length: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Mean over trajectories of the sum over their tokens."""
    return _ones(sequences, dtype) / max(1, sequences.unique().shape[0])


def seq_mean_token_mean(sequences: Tensor, constant_length: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Mean over trajectories of the mean over their tokens: every trajectory counts the same."""
    _, sequence, lengths = sequences.unique(return_inverse=True, return_counts=True)
    return _ones(sequences, dtype) / (lengths[sequence] * max(1, lengths.shape[0]))


def seq_mean_token_sum_norm(sequences: Tensor, constant_length: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Mean over trajectories of the sum over their tokens / a constant (Dr. GRPO): no bias by length.

    Some systems leave out the mean over trajectories, so that the loss grows with the batch: theirs is this one times
    the number of trajectories.
    """
    return seq_mean_token_sum(sequences, constant_length, dtype) / constant_length


def _ones(sequences: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.ones_like(sequences, dtype=dtype)


AGGREGATIONS: dict[str, Aggregation] = {
    "token-mean": token_mean,
    "seq-mean-token-sum": seq_mean_token_sum,
    "seq-mean-token-mean": seq_mean_token_mean,
    "seq-mean-token-sum-norm": seq_mean_token_sum_norm,
}
