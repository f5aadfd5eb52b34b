"""The record of a training step. Only this module knows how it is named in `metrics.jsonl`.

A row of `metrics.jsonl` is a training step, an evaluation (`eval/...`), a ladder of self-play (`ladder/...`), the loss
of held-out demonstrations (`held_out/...`) or the set-up of the run. Imports no torch.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

STEP_PREFIXES = ("rollout/", "data/", "train/")
"""A row with such a metric is a training step."""
IDLE_REASON = "train/idle_reason"
DROPPED_REASON = "rollout/dropped_reason"


class IdleReason(StrEnum):
    """Why a step did not change the policy. Its value is written to the row."""

    NO_TOKENS = "no_tokens"
    """No token was sampled: every prompt fills the context."""
    FILTERED = "filtered"
    """The filter kept no group."""
    DROPPED = "dropped"
    """The groups that passed the filter were dropped: their greedy episodes failed."""
    TRUNCATED = "truncated"
    """All episodes were truncated, and such episodes are not trained on."""
    NO_UTTERANCES = "no_utterances"
    """ArCHer has no utterance to train on."""
    UNTRUSTED_CRITIC = "untrusted_critic"
    """ArCHer's critic does not predict the returns."""
    LOSS_TOKENS = "loss_tokens"
    """algo.loss_tokens selects no token."""
    ADVANTAGE_TOKENS = "advantage_tokens"
    """algo.advantage_tokens selects no token."""
    DISJOINT_TOKENS = "disjoint_tokens"
    """No token is selected by both."""
    ZERO_ADVANTAGES = "zero_advantages"
    ZERO_GRADIENT = "zero_gradient"
    SKIPPED = "skipped"
    """Every optimizer step was skipped: its gradient was not finite."""


class EpisodeSource(StrEnum):
    """Where the episodes of a step came from. The value is the prefix of their metrics."""

    PLAYED = "rollout"
    STORED = "data"
    DEMONSTRATIONS = "train"
    """SFT, which has no metrics of episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """Numbers are named without their prefix: `rollout["success"]`, whether the episodes were played or stored."""

    step: int
    source: EpisodeSource
    rollout: Mapping[str, float] = field(default_factory=dict)
    """Statistics of the episodes."""
    training: Mapping[str, float] = field(default_factory=dict)
    time: Mapping[str, float] = field(default_factory=dict)
    other: Mapping[str, float] = field(default_factory=dict)
    """Other metrics by their full names, such as `reward/env` and `judge/calls`."""
    idle: IdleReason | None = None
    """None if the policy was updated."""
    dropped_reason: str | None = None
    """Last failure that dropped an episode."""

    @classmethod
    def of(
        cls,
        step: int,
        source: EpisodeSource,
        metrics: Mapping[str, float],
        *,
        idle: IdleReason | None = None,
        dropped_reason: str | None = None,
    ) -> Self:
        """Return the record of a step whose metrics have their full names, such as `rollout/success`."""
        groups: dict[str, dict[str, float]] = {"rollout": {}, "train": {}, "time": {}}
        other: dict[str, float] = {}
        for name, value in metrics.items():
            prefix, _, rest = name.partition("/")
            if prefix in groups:
                groups[prefix][rest] = value
            else:
                other[name] = value
        return cls(
            step=step,
            source=source,
            rollout=groups["rollout"],
            training=groups["train"],
            time=groups["time"],
            other=other,
            idle=idle,
            dropped_reason=dropped_reason,
        )

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self | None:
        """Read a row of `metrics.jsonl`; None if it is not a training step."""
        if not is_step(row):
            return None
        nonfinite = row.get("nonfinite", ())
        values = {name: math.nan if value is None and name in nonfinite else value for name, value in row.items()}
        numbers = {
            name: float(value)
            for name, value in values.items()
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
        }
        source = next((each for each in EpisodeSource if _has_prefix(numbers, each)), EpisodeSource.DEMONSTRATIONS)
        metrics = {re.sub("^data/", "rollout/", name): value for name, value in numbers.items()}
        idle, dropped_reason = row.get(IDLE_REASON), row.get(DROPPED_REASON)
        return cls.of(
            row["step"],
            source,
            metrics,
            idle=IdleReason(idle) if idle in set(IdleReason) else None,
            dropped_reason=dropped_reason if isinstance(dropped_reason, str) else None,
        )

    def played(self, name: str) -> float:
        """Return a count of the episodes that were played in this step: 0 for stored ones."""
        return self.rollout.get(name, 0.0) if self.source is EpisodeSource.PLAYED else 0.0

    def to_row(self) -> dict[str, Any]:
        """Return the row of `metrics.jsonl`."""
        groups = {self.source.value: self.rollout, "train": self.training, "time": self.time}
        row: dict[str, Any] = {"step": self.step}
        for prefix, numbers in groups.items():
            row |= {f"{prefix}/{name}": value for name, value in numbers.items()}
        row |= self.other
        row |= {} if self.idle is None else {IDLE_REASON: self.idle.value}
        return row | ({} if self.dropped_reason is None else {DROPPED_REASON: self.dropped_reason})

    def get(self, name: str) -> float | None:
        """Return a metric by its full name, such as `rollout/success`; None if the step lacks it."""
        prefix, _, rest = name.partition("/")
        groups = {"rollout": self.rollout, "train": self.training, "time": self.time}
        return groups[prefix].get(rest) if prefix in groups else self.other.get(name)


def _has_prefix(row: Mapping[str, Any], source: EpisodeSource) -> bool:
    return any(name.startswith(f"{source.value}/") for name in row)


def is_step(row: Mapping[str, Any]) -> bool:
    """Return whether a row of metrics is a training step."""
    return "eval/name" not in row and any(name.startswith(STEP_PREFIXES) for name in row)


def read_steps(rows: Iterable[Mapping[str, Any]]) -> list[StepRecord]:
    """Return the training steps among the rows of `metrics.jsonl`."""
    records = (StepRecord.from_row(row) for row in rows)
    return [record for record in records if record is not None]


def list_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """List rows of metrics in words, such as "the rows of steps 4 to 6 and of 2 evaluations"."""
    steps, evaluations = {row["step"] for row in rows if is_step(row)}, sum("eval/name" in row for row in rows)
    parts = [list_steps(steps)] * bool(steps) + [f"{evaluations} of evaluations"] * bool(evaluations)
    return " and ".join(parts) or f"{len(rows)} rows"


def list_steps(steps: Iterable[int]) -> str:
    """List rows of steps as ranges: {1, 4, 5, 6} -> "the rows of steps 1, 4 to 6"."""
    ranges: list[list[int]] = []
    for step in sorted(steps):
        if ranges and step == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], step]
        else:
            ranges.append([step])
    return f"the rows of steps {', '.join(' to '.join(map(str, each)) for each in ranges)}"
