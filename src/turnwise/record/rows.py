"""The rows of `metrics.jsonl` as typed records. Only this module and `steps.py` know how they are named in the file.

A row is a training step (`StepRecord`), an evaluation (`eval/...`), a ladder of self-play (`ladder/...`), the loss of
held-out demonstrations (`held_out/...`) or the set-up of the run. Imports no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from turnwise.record.steps import StepRecord, finite_number, has_step_metrics, numbers_of

MAX_STEP = 10**12
"""A row with a larger step is not one of turnwise."""
EVALUATION_NAME = "eval/name"
EVALUATION_DROPPED_REASON = "eval/dropped_reason"
WARMUP, DIGEST = "time/warmup_s", "sft/digest"
BEFORE, VALIDATION, AFTER = "before", "validation", "after"
"""Names of evaluations and of held-out losses: before training, between its steps, after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """An evaluation after `step` steps. Numbers are named without their prefix: `metrics["success"]`."""

    step: int
    name: str
    metrics: Mapping[str, float]
    time: Mapping[str, float] = field(default_factory=dict)
    dropped_reason: str | None = None
    """Last failure that dropped an episode."""

    @property
    def success(self) -> float | None:
        """None if no episode was scored."""
        return finite_number(self.metrics.get("success"))

    @property
    def interval(self) -> tuple[float | None, float | None]:
        return finite_number(self.metrics.get("success_low")), finite_number(self.metrics.get("success_high"))

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        numbers, reason = numbers_of(row), row.get(EVALUATION_DROPPED_REASON)
        return cls(
            step=row["step"],
            name=str(row.get(EVALUATION_NAME, "")),
            metrics=_family(numbers, "eval"),
            time=_family(numbers, "time"),
            dropped_reason=reason if isinstance(reason, str) else None,
        )

    def to_row(self) -> dict[str, Any]:
        row = {"step": self.step, EVALUATION_NAME: self.name, **_prefixed("eval", self.metrics)}
        row |= _prefixed("time", self.time)
        return row if self.dropped_reason is None else row | {EVALUATION_DROPPED_REASON: self.dropped_reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderRecord:
    """Rating of the snapshot of a step in self-play."""

    step: int
    metrics: Mapping[str, float]
    time: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        numbers = numbers_of(row)
        return cls(step=row["step"], metrics=_family(numbers, "ladder"), time=_family(numbers, "time"))

    def to_row(self) -> dict[str, Any]:
        return {"step": self.step, **_prefixed("ladder", self.metrics), **_prefixed("time", self.time)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRecord:
    """Losses of held-out demonstrations by name, `before` or `after` training."""

    step: int
    losses: Mapping[str, float]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(step=row["step"], losses=_family(numbers_of(row), "held_out"))

    def to_row(self) -> dict[str, Any]:
        return {"step": self.step, **_prefixed("held_out", self.losses)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUpRecord:
    """The first row of a run."""

    step: int = 0
    warmup_s: float
    """Seconds of the warm-up of the tiny model."""
    digest: str | None = None
    """SFT: hash of the demonstrations."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        digest = row.get(DIGEST)
        return cls(
            step=row["step"],
            warmup_s=finite_number(row.get(WARMUP)) or 0.0,
            digest=digest if isinstance(digest, str) else None,
        )

    def to_row(self) -> dict[str, Any]:
        return {"step": self.step, WARMUP: self.warmup_s} | ({} if self.digest is None else {DIGEST: self.digest})


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRecord:
    """A row that only a damaged file, or one of another program, has."""

    step: int
    row: Mapping[str, Any]

    def to_row(self) -> dict[str, Any]:
        return dict(self.row)


Record = StepRecord | EvaluationRecord | LadderRecord | HeldOutRecord | SetUpRecord | OtherRecord

Selected = TypeVar("Selected", bound=Record)


def read_record(row: Mapping[str, Any]) -> Record | None:
    """Return the record in a row of `metrics.jsonl`; None if it lacks a step."""
    step = row.get("step")
    if type(step) is not int or abs(step) > MAX_STEP:
        return None
    if EVALUATION_NAME in row:
        return EvaluationRecord.from_row(row)
    if has_step_metrics(row):
        return StepRecord.from_row(row)
    families = {name.partition("/")[0] for name in row}
    if "eval" in families:
        return EvaluationRecord.from_row(row)
    if "ladder" in families:
        return LadderRecord.from_row(row)
    if "held_out" in families:
        return HeldOutRecord.from_row(row)
    return SetUpRecord.from_row(row) if WARMUP in row or DIGEST in row else OtherRecord(step=step, row=row)


def read_records(rows: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Return the records in the rows of `metrics.jsonl`, without those that lack a step."""
    records = (read_record(row) for row in rows)
    return [record for record in records if record is not None]


def select(records: Iterable[Record], kind: type[Selected]) -> list[Selected]:
    """Return the records of one type, e.g. `select(records, StepRecord)`."""
    return [record for record in records if isinstance(record, kind)]


def is_evaluation(record: Record | None, name: str) -> bool:
    """Return whether a record is that of an evaluation `name`, or of the losses of that time."""
    if isinstance(record, EvaluationRecord):
        return record.name == name
    return isinstance(record, HeldOutRecord) and name in record.losses


def evaluations_with_success(records: Iterable[Record]) -> list[EvaluationRecord]:
    return [record for record in select(records, EvaluationRecord) if record.success is not None]


def training_s(record: Record) -> float:
    """Return the seconds of the training time in a record: all but the evaluations before and after it."""
    if isinstance(record, SetUpRecord):
        return record.warmup_s
    if isinstance(record, HeldOutRecord | OtherRecord):
        return 0.0
    is_outside = isinstance(record, EvaluationRecord) and record.name in (BEFORE, AFTER)
    return 0.0 if is_outside else finite_number(record.time.get("total_s")) or 0.0


def list_records(records: Sequence[Record]) -> str:
    """List rows in words, such as "the rows of steps 4 to 6 and 2 of evaluations"."""
    steps, evaluations = {record.step for record in select(records, StepRecord)}, select(records, EvaluationRecord)
    parts = [list_steps(steps)] * bool(steps) + [f"{len(evaluations)} of evaluations"] * bool(evaluations)
    return " and ".join(parts) or f"{len(records)} rows"


def list_steps(steps: Iterable[int]) -> str:
    """List rows of steps as ranges: {1, 4, 5, 6} -> "the rows of steps 1, 4 to 6"."""
    ranges: list[list[int]] = []
    for step in sorted(steps):
        if ranges and step == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], step]
        else:
            ranges.append([step])
    return f"the rows of steps {', '.join(' to '.join(map(str, ends)) for ends in ranges)}"


def _family(numbers: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return the metrics of a prefix, named without it."""
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in numbers.items() if name.startswith(start)}


def _prefixed(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
