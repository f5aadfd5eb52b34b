"""Recorded episodes of a run, selected by step, group and member."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.trajectory import Trajectory
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import trajectory_from_row


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEpisode:
    """An episode of a run and its place there."""

    step: int
    group: int
    evaluation: str | None
    """Evaluation "before", "validation" or "after"; None: training."""
    trajectory: Trajectory

    def describe(self) -> str:
        where = f"{self.evaluation}, " if self.evaluation else ""
        return f"{where}step {self.step}, group {self.group}, member {self.trajectory.member}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Episodes of a run; None: of all steps, groups or members."""

    step: int | None = None
    group: int | None = None
    member: int | None = None
    evaluation: str | None = None
    """Evaluation "before", "validation" or "after"; None: training."""

    def read(self, folder: RunFolder) -> list[RecordedEpisode]:
        """Read the episodes, ordered by step. Raise UserError if there are none."""
        entries = folder.read_index(self.evaluation)
        chosen = sorted(filter(self._holds, entries), key=lambda entry: int(entry["step"]))
        if not chosen:
            raise UserError(f"{folder.path} has no episode of {self._describe()}. {_describe_steps(entries)}.")
        return [
            RecordedEpisode(
                step=entry["step"],
                group=entry["group"],
                evaluation=self.evaluation,
                trajectory=trajectory_from_row(folder.read_trajectory(entry)),
            )
            for entry in chosen
        ]

    def _places(self) -> Mapping[str, int]:
        places = {"step": self.step, "group": self.group, "member": self.member}
        return {name: number for name, number in places.items() if number is not None}

    def _holds(self, entry: Mapping[str, Any]) -> bool:
        return all(entry[name] == number for name, number in self._places().items())

    def _describe(self) -> str:
        places = [f"{name} {number}" for name, number in self._places().items()]
        return ", ".join([f"the evaluation {self.evaluation}" if self.evaluation else "training", *places])


def _describe_steps(entries: Sequence[Mapping[str, Any]]) -> str:
    steps = [entry["step"] for entry in entries]
    return f"It recorded steps {min(steps)} to {max(steps)}" if steps else "It recorded none of that kind"


def branched_turns(from_turn: int | None, *, all_turns: bool) -> tuple[int, ...] | None:
    """Return the turns to sample branches from, counted from 0; None: all."""
    if from_turn is not None and all_turns:
        raise UserError("from_turn and all_turns both select the turns. Remove one of them.")
    return None if all_turns else () if from_turn is None else (from_turn - 1,)
