"""The bonus for varied actions (`algos/exploration.py`) on the tokens of a step's episodes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from turnwise.algos.exploration import surprise
from turnwise.core.trajectory import Trajectory
from turnwise.data.decisions import find_decisions
from turnwise.data.samples import TokenTable


def exploration_bonus(
    trajectories: Sequence[Trajectory], group_ids: Tensor, table: TokenTable
) -> tuple[Tensor, float | None]:
    """Return the bonus of each sampled token before its coefficient [B, S], and the entropy of the actions.

    All tokens of a turn get the sum of the bonuses of its actions.
    """
    decisions = find_decisions(trajectories)
    rows, turns, groups = decisions.rows, decisions.turns, group_ids[decisions.rows]
    bonuses, entropy = surprise(groups, decisions.states, decisions.actions)
    per_turn = torch.zeros(len(trajectories), max(len(trajectory.turns) for trajectory in trajectories))
    per_turn.index_put_((rows, turns), bonuses.float(), accumulate=True)
    return table.to_matrix([per_turn[s.trajectory][s.turn_ids[s.mask]] for s in table.samples]), entropy
