"""Trajectories to samples: one a segment, the mask born with the tokens."""

from collections.abc import Sequence

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
    ids: list[int] = []
    turn_ids: list[int] = []
    logprobs: list[float] = []
    temperatures: list[float] = []
    for turn_id, turn in enumerate(segment.turns, start=segment.first_turn):
        before, sampled = len(turn.context_ids), len(turn.action_ids)
        ids += turn.context_ids
        ids += turn.action_ids
        turn_ids += [-1] * before + [turn_id] * sampled
        logprobs += [0.0] * before
        logprobs += turn.action_logprobs
        temperatures += [1.0] * before + [turn.temperature] * sampled
    turn_tensor = torch.tensor(turn_ids)
    return Sample(
        trajectory=trajectory,
        ids=torch.tensor(ids),
        mask=turn_tensor >= 0,
        turn_ids=turn_tensor,
        logprobs=torch.tensor(logprobs),
        temperatures=torch.tensor(temperatures),
    )
