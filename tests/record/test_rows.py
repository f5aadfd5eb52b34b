"""The typed rows of `metrics.jsonl`: what is written is read back, and nobody else knows the names in the file."""

import ast
import math
from pathlib import Path
from typing import Any

import pytest

import turnwise
from turnwise.record.jsonl import replace_nonfinite
from turnwise.record.rows import (
    EvaluationRecord,
    HeldOutRecord,
    LadderRecord,
    OtherRecord,
    Record,
    SetUpRecord,
    is_evaluation,
    read_record,
    read_records,
    training_s,
)
from turnwise.record.steps import EpisodeSource, StepRecord

SRC = Path(turnwise.__file__).parent
RECORDS: tuple[Record, ...] = (
    SetUpRecord(warmup_s=2.5),
    SetUpRecord(warmup_s=0.0, digest="ab12"),
    StepRecord(step=3, source=EpisodeSource.STORED, rollout={"success": 0.5}, time={"total_s": 4.0}),
    EvaluationRecord(step=3, name="validation", metrics={"success": 0.5, "success/lake": 1.0}, time={"total_s": 8.0}),
    EvaluationRecord(step=0, name="before", metrics={"success": 0.5}, time={"total_s": 16.0}, dropped_reason="gone"),
    LadderRecord(step=3, metrics={"elo": 12.0, "score/step_000001": 0.5}, time={"total_s": 32.0}),
    HeldOutRecord(step=3, losses={"after": 1.5}),
    OtherRecord(step=1, row={"step": 1, "note": "x"}),
)


@pytest.mark.parametrize("record", RECORDS)
def test_record_survives_its_row(record: Record) -> None:
    assert read_record(record.to_row()) == record


def test_row_of_an_evaluation_has_its_names_in_the_file() -> None:
    row = RECORDS[4].to_row()
    names = ["step", "eval/name", "eval/success", "time/total_s", "eval/dropped_reason"]
    assert list(row) == names and row["eval/name"] == "before"


def test_training_time_leaves_out_the_evaluations_before_and_after() -> None:
    assert [training_s(record) for record in RECORDS] == [2.5, 0, 4, 8, 0, 32, 0, 0]


@pytest.mark.parametrize("row", [{}, {"step": None}, {"step": True}, {"step": 1.0}, {"step": 10**30}, {"step": "1"}])
def test_row_without_a_valid_step_is_not_a_record(row: dict[str, Any]) -> None:
    assert read_record(row) is None and read_records([row]) == []


@pytest.mark.parametrize("value", [10**400, "NaN", None, True, [1.0], {"a": 1}])
def test_record_accepts_invalid_numbers(value: Any) -> None:
    for row in ({"step": 1, "rollout/success": value}, {"step": 1, "eval/name": value, "eval/success": value}):
        record = read_record(row | {"nonfinite": value})
        assert isinstance(record, StepRecord | EvaluationRecord)
    assert isinstance(record, EvaluationRecord) and record.success is None


def test_evaluation_without_a_success_has_none() -> None:
    record = EvaluationRecord(step=1, name="after", metrics={"success": math.nan})
    read = read_record(replace_nonfinite(record.to_row()))
    assert isinstance(read, EvaluationRecord) and read.success is None and read.interval == (None, None)
    assert is_evaluation(read, "after") and not is_evaluation(read, "before")
    assert is_evaluation(RECORDS[6], "after") and not is_evaluation(None, "after")


def test_names_in_the_file_are_known_to_the_records_alone() -> None:
    """Others read `record.metrics["success"]`."""
    own = ("eval/", "ladder/", "held_out/", "sft/")
    files = [file for file in SRC.rglob("*.py") if file != SRC / "record" / "rows.py"]
    texts = {
        (file.relative_to(SRC).as_posix(), node.value)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {(file, text) for file, text in texts if text.startswith(own)} == set()
    assert {file for file, text in texts if text == "metrics.jsonl"} == {"files/run_folders.py"}
