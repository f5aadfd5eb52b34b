"""Which sampled tokens count: two separate choices, for the loss and for the advantage.

turn       <think> a b </think> <answer> c </answer> end
sampled       1    1 1     1        1    1     1      1
think         .    1 1     .        .    .     .      .
answer        .    . .     .        .    1     .      .
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turnwise.core.errors import FOREIGN_ERRORS, UserError
from turnwise.core.trajectory import Trajectory, Turn

TokenRule = Callable[[Turn], Sequence[bool]]
"""One truth value for each of a turn's action ids."""


def sampled(turn: Turn) -> Sequence[bool]:
    """All of them."""
    return [True] * len(turn.action_ids)


def think(turn: Turn) -> Sequence[bool]:
    """The thinking, without its tags."""
    return _in_spans(turn, "think")


def answer(turn: Turn) -> Sequence[bool]:
    """The answer, without its tags: a turn that has none trains nothing, so its format is not learnt."""
    return _in_spans(turn, "answer")


def _in_spans(turn: Turn, name: str) -> list[bool]:
    chosen = [False] * len(turn.action_ids)
    for span in turn.spans:
        if span.name == name:
            chosen[span.start : span.end] = [True] * (span.end - span.start)
    return chosen


TOKEN_RULES: dict[str, TokenRule] = {"sampled": sampled, "think": think, "answer": answer}


def rule_masks(trajectories: Sequence[Trajectory], rule: TokenRule) -> list[Tensor]:
    """What the rule chooses among the sampled tokens of each segment, in the order of `samples_of`. [K] bool each"""
    return [
        torch.from_numpy(np.concatenate([_checked(turn, rule) for turn in segment.turns]))
        for trajectory in trajectories
        for segment in trajectory.segments()
    ]


def _checked(turn: Turn, rule: TokenRule) -> NDArray[np.bool_]:
    try:
        chosen = np.fromiter(map(bool, rule(turn)), dtype=np.bool_)
    except FOREIGN_ERRORS as error:  # the rule is the user's
        raise UserError(f"the token rule failed: {type(error).__name__}: {error}") from error
    if len(chosen) != len(turn.action_ids):
        raise UserError(
            f"a token rule gave {len(chosen)} values for a turn of {len(turn.action_ids)} sampled tokens: "
            "give one for each of turn.action_ids"
        )
    return chosen
