"""The turns of trajectories: what runs over turns works on [B, K] matrices, a column a turn.

mask         1 1 0 0 1 1 1 0
turn_ids     0 0 . . 1 1 1 .      a new id on a sampled token begins a turn; rewards have no say in it
starts       1 . . . 1 . . .
ends         . 1 . . . . 1 .
turn matrix  r0 r1                K is the number of turns of the longest row
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    tokens: Tensor
    """[B, T] bool: the sampled tokens."""
    starts: Tensor
    """[B, T] bool: the first sampled token of each turn."""
    ends: Tensor
    """[B, T] bool: the last sampled token of each turn."""
    number: Tensor
    """[B, T] int64: the turn's column, 0 where nothing was sampled."""
    mask: Tensor
    """[B, K] bool: turns that the row has."""

    def sums(self, values: Tensor) -> Tensor:
        """[B, T] -> [B, K]: summed over each turn's sampled tokens."""
        empty = values.new_zeros(self.mask.shape)
        return empty.scatter_add(1, self.number, torch.where(self.tokens, values, 0))

    def at_starts(self, values: Tensor) -> Tensor:
        """[B, T] -> [B, K]: what stands at each turn's first sampled token, 0 where there is no turn."""
        return self.sums(torch.where(self.starts, values, 0))

    def at_ends(self, values: Tensor) -> Tensor:
        """[B, T] -> [B, K]: what stands at each turn's last sampled token, 0 where there is no turn."""
        return self.sums(torch.where(self.ends, values, 0))

    def spread(self, values: Tensor) -> Tensor:
        """[B, K] -> [B, T]: a turn's value on all of its sampled tokens, 0 elsewhere."""
        return torch.where(self.tokens, values.gather(1, self.number), 0)


def find_turns(mask: Tensor, turn_ids: Tensor) -> Turns:
    """From [B, T] each: a turn ends where the next *sampled* token of the row has another id, or there is none."""
    starts = _first_of_run(mask, turn_ids)
    ends = _first_of_run(mask.flip(1), turn_ids.flip(1)).flip(1)
    counts = starts.sum(dim=1)
    longest = max(1, int(counts.max())) if counts.numel() else 1
    return Turns(
        tokens=mask,
        starts=starts,
        ends=ends,
        number=torch.where(mask, starts.cumsum(dim=1) - 1, 0),
        mask=torch.arange(longest, device=mask.device) < counts[:, None],
    )


def _first_of_run(mask: Tensor, ids: Tensor) -> Tensor:
    """Sampled tokens whose sampled predecessor in the row has another id, or that have none. [B, T]"""
    places = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    latest = torch.where(mask, places, -1).cummax(dim=1).values  # the last sampled place up to here
    before = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], dim=1)
    return mask & ((before < 0) | (ids.gather(1, before.clamp(min=0)) != ids))
