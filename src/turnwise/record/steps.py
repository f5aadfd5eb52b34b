"""The record of a training step. Only this module knows how it is named in `metrics.jsonl`. Imports no torch."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

STEP_PREFIXES = ("rollout/", "data/", "train/")
"""A row with such a metric is a training step."""
SUCCESS = "rollout/success"
ENERGY = "energy/wh"
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


IDLE_REASONS: Mapping[str, IdleReason] = {reason.value: reason for reason in IdleReason}


class EpisodeSource(StrEnum):
    """Origin of a step's episodes. The value is the prefix of their metrics."""

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
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read a training step; `read_record` also reads the other rows of `metrics.jsonl`."""
        numbers = numbers_of(row)
        idle, dropped_reason = row.get(IDLE_REASON), row.get(DROPPED_REASON)
        return cls.of(
            row["step"],
            _source_of(numbers),
            {metric_name(name): value for name, value in numbers.items()},
            idle=IDLE_REASONS.get(idle) if isinstance(idle, str) else None,
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

    def keep(self, names: Collection[str]) -> Self:
        """Return the record with only the metrics of these full names."""
        metrics = {name: value for name in names if (value := self.get(name)) is not None}
        return self.of(self.step, self.source, metrics, idle=self.idle, dropped_reason=self.dropped_reason)


def has_step_metrics(row: Mapping[str, Any]) -> bool:
    """Return whether a row that is not an evaluation is a training step."""
    return any(name.startswith(STEP_PREFIXES) for name in row)


def metric_name(name: str) -> str:
    """Return the name of a metric in the file as it is in a record: that of stored episodes is as of played ones."""
    stored = f"{EpisodeSource.STORED.value}/"
    return f"{EpisodeSource.PLAYED.value}/{name.removeprefix(stored)}" if name.startswith(stored) else name


def _source_of(names: Collection[str]) -> EpisodeSource:
    for source in EpisodeSource:
        start = f"{source.value}/"
        if any(name.startswith(start) for name in names):
            return source
    return EpisodeSource.DEMONSTRATIONS


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row without its step. Those that are not finite are null in the file."""
    nonfinite = row.get("nonfinite")
    missing = nonfinite if isinstance(nonfinite, list) else ()
    numbers = {}
    for name, value in row.items():
        if type(value) is float:
            numbers[name] = value
        elif type(value) is int:
            numbers[name] = _to_float(value)
        elif value is None and name in missing:
            numbers[name] = math.nan
    numbers.pop("step", None)
    return numbers


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer that is too large
        return math.nan


LARGEST = 1e100
"""Differences of larger numbers may overflow."""


def finite_number(value: Any) -> float | None:
    """Return a number of a row as a float; None for text, null, NaN, infinities and numbers beyond LARGEST."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) <= LARGEST else None
