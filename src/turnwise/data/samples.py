"""Trajectories to samples: one a segment, the mask born with the tokens."""

from collections.abc import Sequence

import numpy as np
import torch

from turnwise.core.samples import Sample
from turnwise.core.trajectory import Segment, Trajectory


def samples_of(trajectories: Sequence[Trajectory]) -> list[Sample]:
    """Every sampled token of every trajectory is in exactly one sample."""
    return [
        segment_sample(index, segment)
        for index, trajectory in enumerate(trajectories)
        for segment in trajectory.segments()
    ]


def segment_sample(trajectory: int, segment: Segment) -> Sample:
    """By numpy, which reads Python's numbers several times as fast as torch does."""
    turns = segment.turns
    ids = [token for turn in turns for part in (turn.context_ids, turn.action_ids) for token in part]
    logprobs = [logprob for turn in turns for logprob in turn.action_logprobs]
    sizes = [size for turn in turns for size in (len(turn.context_ids), len(turn.action_ids))]
    numbers = [number for index in range(len(turns)) for number in (-1, segment.first_turn + index)]
    temperatures = [temperature for turn in turns for temperature in (1.0, turn.temperature)]
    turn_ids = np.repeat(np.array(numbers, dtype=np.int64), sizes)
    mask = turn_ids >= 0
    placed = np.zeros(len(ids), dtype=np.float32)
    placed[mask] = logprobs
    return Sample(
        trajectory=trajectory,
        ids=torch.from_numpy(np.fromiter(ids, np.int64, len(ids))),
        mask=torch.from_numpy(mask),
        turn_ids=torch.from_numpy(turn_ids),
        logprobs=torch.from_numpy(placed),
        temperatures=torch.from_numpy(np.repeat(np.array(temperatures, dtype=np.float32), sizes)),
    )
