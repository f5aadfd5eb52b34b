"""Build samples from trajectories, one per segment, and the masks of trained tokens.

Token rules choose which sampled tokens count, separately for the loss and for the advantage:

turn       <think> a b </think> <answer> c </answer> end
sampled       1    1 1     1        1    1     1      1
think         .    1 1     .        .    .     .      .
answer        .    . .     .        .    1     .      .

The sections of replies that describe and predict states (`envs/reasoning.py`) are parts of the thinking:

turn         <think> <observation> a </observation> <reasoning> b </reasoning> <prediction> c </prediction> </think>
think           .         1        1       1            1       1      1            1       1       1          .
observation     .         .        1       .            .       .      .            .       .       .          .
prediction      .         .        .       .            .       .      .            .       1       .          .
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.core.constraint import Constraint, ConstraintError
from turnwise.core.errors import FOREIGN_ERRORS, UserError
from turnwise.core.samples import Sample
from turnwise.core.trajectory import Segment, Trajectory, Turn

AllowedSets = Callable[[Constraint, Sequence[int]], Sequence[bytes]]
"""(constraint, sampled ids) -> packed set of the tokens that were allowed before each, as `GrammarCompiler` has it."""


def build_samples(trajectories: Sequence[Trajectory], allowed_sets: AllowedSets | None = None) -> list[Sample]:
    """Build one sample per segment, so that every sampled token is in exactly one sample.

    `allowed_sets`: for turns with a constraint, which raise UserError without it.
    """
    return [
        build_sample(index, segment, allowed_sets)
        for index, trajectory in enumerate(trajectories)
        for segment in trajectory.segments()
    ]


def build_sample(trajectory: int, segment: Segment, allowed_sets: AllowedSets | None = None) -> Sample:
    """Build the sample of a segment. NumPy converts Python numbers several times faster than torch."""
    turns = segment.turns
    ids = [token for turn in turns for part in (turn.context_ids, turn.action_ids) for token in part]
    logprobs = [logprob for turn in turns for logprob in turn.action_logprobs]
    sizes = [size for turn in turns for size in (len(turn.context_ids), len(turn.action_ids))]
    numbers = [number for index in range(len(turns)) for number in (-1, segment.first_turn + index)]
    temperatures = [temperature for turn in turns for temperature in (1.0, turn.temperature)]
    turn_ids = np.repeat(np.array(numbers, dtype=np.int64), sizes)
    mask = turn_ids >= 0
    token_logprobs = np.zeros(len(ids), dtype=np.float32)
    token_logprobs[mask] = logprobs
    return Sample(
        trajectory=trajectory,
        ids=torch.from_numpy(np.fromiter(ids, np.int64, len(ids))),
        mask=torch.from_numpy(mask),
        turn_ids=torch.from_numpy(turn_ids),
        sampler_logprobs=torch.from_numpy(token_logprobs),
        temperatures=torch.from_numpy(np.repeat(np.array(temperatures, dtype=np.float32), sizes)),
        allowed=_find_allowed(turns, allowed_sets) if any(turn.constraint is not None for turn in turns) else None,
    )


def _find_allowed(turns: Sequence[Turn], allowed_sets: AllowedSets | None) -> tuple[bytes, ...]:
    """Return the set of allowed tokens at each sampled token, empty at those without a constraint."""
    if allowed_sets is None:
        raise UserError(
            "Episodes with response_format or a required tool_choice cannot be used here: their probabilities are "
            "those among the allowed tokens, which this method does not compute. Remove these settings."
        )
    allowed = list[bytes]()
    for turn in turns:
        try:
            sets = None if turn.constraint is None else allowed_sets(turn.constraint, turn.action_ids)
        except ConstraintError as error:
            raise UserError(f"A recorded grammar does not match its reply: {error}. Remove the episode.") from error
        allowed += [b""] * len(turn.action_ids) if sets is None else sets
    return tuple(allowed)


TokenRule = Callable[[Turn], Sequence[bool]]
"""Turn -> one bool per action id."""


PARTS = ("think", "answer", "observation", "reasoning", "prediction")
"""Parts of a turn by name."""


def sampled(turn: Turn) -> Sequence[bool]:
    """All sampled tokens."""
    return [True] * len(turn.action_ids)


@cache
def part_rule(names: frozenset[str]) -> TokenRule:
    """Return the rule that selects these parts, without their tags.

    A turn without any of them trains nothing: with "answer" alone, the format is not learnt.
    """

    def in_parts(turn: Turn) -> Sequence[bool]:
        chosen = [False] * len(turn.action_ids)
        for span in turn.spans:
            if span.name in names:
                chosen[span.start : span.end] = [True] * (span.end - span.start)
        return chosen

    return in_parts


def rule_masks(trajectories: Sequence[Trajectory], rule: TokenRule) -> list[Tensor]:
    """Apply the rule to the sampled tokens of each segment, in the order of `build_samples`. [K] bool each"""
    return [
        torch.from_numpy(np.concatenate([_apply_rule(turn, rule) for turn in segment.turns]))
        for trajectory in trajectories
        for segment in trajectory.segments()
    ]


def _apply_rule(turn: Turn, rule: TokenRule) -> NDArray[np.bool_]:
    try:
        chosen = np.fromiter(map(bool, rule(turn)), dtype=np.bool_)
    except FOREIGN_ERRORS as error:  # user code
        raise UserError(f"The token rule raised {type(error).__name__}: {error}") from error
    if len(chosen) != len(turn.action_ids):
        raise UserError(
            f"The token rule returned {len(chosen)} values for a turn of {len(turn.action_ids)} sampled tokens. "
            "Return one bool per element of turn.action_ids."
        )
    return chosen


class TokenTable:
    """Table of a step's sampled tokens, one row per trajectory, for advantages over whole trajectories.

    samples (segments)      s s a a s a a | s a a        one trajectory of two segments
    its row of the table    a a a a a a                  sampled tokens only, in order, across segments
    """

    def __init__(self, samples: Sequence[Sample], num_trajectories: int) -> None:
        self.samples = samples
        counts = [0] * num_trajectories
        starts, sizes = [], count_sampled(samples)
        for sample, size in zip(samples, sizes, strict=True):
            starts.append(counts[sample.trajectory])
            counts[sample.trajectory] += size
        self.counts = torch.tensor(counts)  # [B]
        sampled = torch.tensor(sizes)
        before = torch.tensor(starts) - (sampled.cumsum(0) - sampled)
        self.rows = torch.tensor([sample.trajectory for sample in samples]).repeat_interleave(sampled)
        # [K] column of each sampled token
        self.columns = torch.arange(len(self.rows)) + before.repeat_interleave(sampled)
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
