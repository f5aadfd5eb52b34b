"""A step's trajectories as they are recorded: with all that was known and learnt of their tokens."""

from collections.abc import Callable, Sequence

from torch import Tensor

from turnwise.core.samples import Sample
from turnwise.core.trajectory import Group
from turnwise.record.trajectories import TOKEN_COLUMNS, trajectory_row
from turnwise.training.estimate import Estimate
from turnwise.training.seen import Seen

TurnColumns = dict[str, list[list[float] | None]]


def trajectory_rows(
    number: int,
    groups: Sequence[Group],
    estimated: Estimate | None,
    decode: Callable[[Sequence[int]], str],
    seen: Seen | None = None,
) -> list[dict[str, object]]:
    """All trajectories of a step; those that were trained on with the numbers of their tokens."""
    columns = {} if estimated is None else _columns(estimated, seen or Seen())
    return [
        trajectory_row(
            trajectory, step=number, group=group_number, decode=decode, columns=columns.get(id(trajectory), {})
        )
        for group_number, group in enumerate(groups)
        for trajectory in group.trajectories
    ]


def _columns(estimated: Estimate, seen: Seen) -> dict[int, TurnColumns]:
    """By trajectory."""
    found: dict[int, TurnColumns] = {}
    for index, sample in enumerate(estimated.samples):
        trajectory = estimated.trajectories[sample.trajectory]
        own = found.setdefault(id(trajectory), {name: [None] * len(trajectory.turns) for name in TOKEN_COLUMNS})
        known = {"advantages": estimated.advantages[index][sample.mask], "loss_mask": estimated.loss_masks[index].int()}
        for name, values in (known | seen.of(sample)).items():
            for turn, part in _by_turn(sample, values):
                own[name][turn] = part
    return found


def _by_turn(sample: Sample, values: Tensor) -> list[tuple[int, list[float]]]:
    """`values`: one a sampled token."""
    turns, counts = sample.turn_ids[sample.mask].unique_consecutive(return_counts=True)
    parts = values.split(counts.tolist())
    return [(turn, part.tolist()) for turn, part in zip(turns.tolist(), parts, strict=True)]
