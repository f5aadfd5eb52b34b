"""Scores of samples: log-probabilities, entropies and values of their sampled tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.core.learner import Learner, Needs
from turnwise.core.samples import Sample
from turnwise.core.trajectory import Trajectory
from turnwise.data.packing import micro_batches, pack, unpack

SCORE_COLUMNS = ("policy_logprobs", "entropy", "values", "ref_logprobs")


def sampler_values(trajectories: Sequence[Trajectory]) -> list[Tensor] | None:
    """Return the values that the engine computed while it sampled, in the order of `build_samples`.

    Return None if any turn lacks values. They come from the critic's weights at the start of the step, so no second
    forward pass is needed. The engine
    does not compute the value after the last token, which bootstrapping needs.
    """
    segments = [segment for trajectory in trajectories for segment in trajectory.segments()]
    if any(len(turn.values) != len(turn.action_ids) for segment in segments for turn in segment.turns):
        return None
    return [torch.tensor([value for turn in segment.turns for value in turn.values]) for segment in segments]


def score_samples(
    samples: Sequence[Sample], learner: Learner, needs: Needs, micro_tokens: int
) -> dict[str, list[Tensor]]:
    """Score samples in micro-batches. Returns, for each of `needs`, a tensor [K] per sample, of its sampled tokens.

    With values comes "end_values", the value after the last token of each sample.
    """
    if not needs.anything:
        return {}
    parts = micro_batches(samples, micro_tokens, learner.ranks)
    batches = [pack([samples[index] for index in part]) for part in parts]
    columns: dict[str, dict[int, Tensor]] = {}
    for part, batch, scores in zip(parts, batches, learner.score(batches, needs), strict=True):
        for name in SCORE_COLUMNS:
            column = getattr(scores, name)
            if column is not None and getattr(needs, name):
                columns.setdefault(name, {}).update(zip(part, unpack(batch, column), strict=True))
        if scores.end_values is not None:
            in_order = [part[index] for index in batch.order]
            columns.setdefault("end_values", {}).update(zip(in_order, scores.end_values.unbind(), strict=True))
    return {name: [column[index] for index in range(len(samples))] for name, column in columns.items()}
