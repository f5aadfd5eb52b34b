"""The catalogue of metrics, and the record of a step that uses its names."""

import math
from typing import Any

import pytest

from runs_for_tests import find_metric
from turnwise.record.catalogue import METRICS
from turnwise.record.jsonl import replace_nonfinite
from turnwise.record.rows import list_records, read_record, read_records, select
from turnwise.record.steps import EpisodeSource, IdleReason, StepRecord
from turnwise.viewer.api import write_catalogue

STEP = {"step": 3, "rollout/success": 0.5, "train/grad_norm": 1.0, "time/total_s": 2.0, "reward/env": 0.25}
OTHERS: tuple[dict[str, Any], ...] = (
    {"step": 0, "time/warmup_s": 1.0},
    {"step": 0, "sft/digest": "5d41"},
    {"step": 3, "eval/name": "validation", "eval/success": 0.5, "time/total_s": 1.0},
    {"step": 3, "ladder/elo": 12.0, "time/total_s": 1.0},
    {"step": 0, "held_out/before": 1.5},
)


def test_metric_names_are_unique_and_explained() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.meaning.endswith("."), metric.name
        assert bool(metric.label) == bool(metric.places or metric.line), metric.name


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("rollout/success", "rollout/success"),
        ("data/success", "rollout/success"),
        ("rollout/success/sokoban", "rollout/success/ENV"),
        ("reward/taste", "reward/NAME"),
        ("eval/pass_at_8", "eval/pass_at_K"),
        ("diagnostics/gradient_kl_3", "diagnostics/gradient_TERM_N"),
        ("time/rollout_s", "time/PHASE_s"),
        ("train/of_my_own", None),
    ],
)
def test_find_metric_knows_families(name: str, found: str | None) -> None:
    metric = find_metric(name)
    assert (metric and metric.name) == found


def test_viewer_gets_titles_and_units() -> None:
    module = write_catalogue()
    assert '"name": "train/kl", "pattern": "train/kl", "unit": "nats", "title": "KL to the reference"' in module
    assert '"name": "rollout/turns", "pattern": "rollout/turns", "unit": "mean", "title": ""' in module


@pytest.mark.parametrize("row", OTHERS)
def test_only_steps_are_steps(row: dict[str, Any]) -> None:
    assert not isinstance(read_record(row), StepRecord)
    assert [record.step for record in select(read_records([row, STEP]), StepRecord)] == [3]
    assert list_records(read_records([STEP, OTHERS[2]])) == "the rows of steps 3 and 1 of evaluations"


@pytest.mark.parametrize("source", EpisodeSource)
def test_step_record_survives_its_row(source: EpisodeSource) -> None:
    metrics = {name: value for name, value in STEP.items() if name != "step"} | {"train/grad_norm": math.nan}
    if source is EpisodeSource.DEMONSTRATIONS:
        del metrics["rollout/success"]
    record = StepRecord.of(3, source, metrics, idle=IdleReason.SKIPPED, dropped_reason="gone")
    row = replace_nonfinite(record.to_row())
    assert ("data/success" in row) == (source is EpisodeSource.STORED)
    assert row["train/grad_norm"] is None and row["train/idle_reason"] == "skipped"
    read = StepRecord.from_row(row)
    assert math.isnan(read.training["grad_norm"])
    assert (read.step, read.source, read.idle, read.dropped_reason) == (3, source, IdleReason.SKIPPED, "gone")
    assert (read.rollout, read.other, read.time) == (record.rollout, record.other, record.time)
    assert read.get("rollout/success") == (None if source is EpisodeSource.DEMONSTRATIONS else 0.5)
    assert read.get("reward/env") == 0.25 and read.get("reward/none") is None
