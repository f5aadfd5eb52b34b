"""Decisions of an episode: the state in which each turn acted, and its actions, whatever their spelling."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnwise.core.trajectory import Trajectory

START = "start"
"""State of the first turn where the environment names none: members of a group start alike."""


def turn_actions(trajectory: Trajectory) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield index, state and actions of the turns that have both."""
    turns = [(index, turn) for index, turn in enumerate(trajectory.turns) if not turn.is_summary]
    for number, (index, turn) in enumerate(turns):
        state, actions = turn.info.get("state", START if number == 0 else None), turn.info.get("actions")
        if state is not None and isinstance(actions, list | tuple):
            yield index, str(state), tuple(str(action).casefold() for action in actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Single actions of valid turns, D of them, each with what preceded it.

    turn        state s: "Down || Right"              whether a further action follows is not a decision
    decisions   (s) -> down, (s, down) -> right
    """

    rows: Tensor  # [D] int64
    """Index of the trajectory."""
    turns: Tensor  # [D] int64
    """Index of the turn in its trajectory."""
    states: Tensor  # [D] int64
    """Index of the state and the turn's earlier actions."""
    actions: Tensor  # [D] int64


def find_decisions(trajectories: Sequence[Trajectory]) -> Decisions:
    """Return the decisions of the trajectories. Equal states, and equal actions, have the same index."""
    states: dict[tuple[str, ...], int] = {}
    names: dict[str, int] = {}
    columns: list[tuple[int, int, int, int]] = []
    for row, trajectory in enumerate(trajectories):
        for turn, state, actions in turn_actions(trajectory):
            if trajectory.turns[turn].invalid:
                continue
            for number, action in enumerate(actions):
                preceding = states.setdefault((state, *actions[:number]), len(states))
                columns.append((row, turn, preceding, names.setdefault(action, len(names))))
    rows, turns, preceding_states, taken = torch.tensor(columns, dtype=torch.int64).view(-1, 4).unbind(dim=1)
    return Decisions(rows=rows, turns=turns, states=preceding_states, actions=taken)
