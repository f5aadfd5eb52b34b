"""Cost of a run, from --price to the plan, the progress and the summary."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from runs_for_tests import quiet, small
from turnwise.config.load import build
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.record.rows import EvaluationRecord, HeldOutRecord, SetUpRecord
from turnwise.record.steps import EpisodeSource, StepRecord
from turnwise.report.formatting import format_money
from turnwise.run import cost
from turnwise.run.cost import count_devices, price_per_s, recorded_s
from turnwise.run.plan import plan_run
from turnwise.run.train import train


def configure(**settings: Any) -> Config:
    given = {"env.kind": "bandit"} | {name.replace("__", "."): value for name, value in settings.items()}
    return build({}, list(given.items()))


@pytest.mark.parametrize(
    ("settings", "devices"),
    [
        ({}, 1),
        ({"cluster__engines": 3}, 3),
        ({"cluster__engines": 3, "cluster__learners": 4}, 4),
        ({"cluster__engines": 3, "cluster__placement": "disaggregated"}, 4),
        ({"cluster__engines": 3, "cluster__learners": 2, "cluster__placement": "disaggregated"}, 5),
        ({"cluster__engines": 2, "engine": "vllm", "engine__tensor_parallel": 2}, 4),
    ],
)
def test_gpus_of_the_cluster_are_paid_for(
    settings: dict[str, Any], devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(record__price=3600, **settings)
    assert count_devices(config) == 1, "a machine without a GPU"
    monkeypatch.setattr(cost, "resolve_device", lambda name: torch.device("cuda"))
    assert count_devices(config) == devices
    assert price_per_s(config) == devices
    assert price_per_s(configure(**settings)) is None


def test_all_recorded_work_is_paid_for() -> None:
    step = StepRecord.of(1, EpisodeSource.PLAYED, {"rollout/success": 0.5, "time/total_s": 4.0})
    before = EvaluationRecord(step=0, name="before", metrics={}, time={"total_s": 2.0})
    lost = EvaluationRecord(step=1, name="after", metrics={}, time={})
    assert recorded_s([SetUpRecord(step=0, warmup_s=1.0), before, step, lost, HeldOutRecord(step=0, losses={})]) == 7.0


def test_plan_names_the_price_of_an_hour_and_of_the_run(tmp_path: Path) -> None:
    unknown = plan_run(configure(record__folder=str(tmp_path), record__price=2.5))
    assert unknown.lines[2] == "2.50 per hour."
    limited = configure(record__folder=str(tmp_path), record__price=2.5, train__max_minutes=30)
    assert plan_run(limited).lines[2] == "2.50 per hour: at most 1.25 for its training."
    assert all("per hour" not in line for line in plan_run(configure(record__folder=str(tmp_path))).lines)


@pytest.mark.parametrize("price", ["0", "-1", "inf", "nan"])
def test_price_is_a_number_above_0(price: str) -> None:
    with pytest.raises(UserError, match=r"record\.price"):
        configure(record__price=price)


@pytest.mark.parametrize(
    ("amount", "text"), [(12.404, "12.40"), (0.0031, "0.0031"), (0.0, "0.00"), (1234.5, "1234.50"), (None, "-")]
)
def test_money_has_two_decimals_or_two_digits(amount: float | None, text: str) -> None:
    assert format_money(amount) == text


def test_run_ends_with_its_cost(tmp_path: Path) -> None:
    settings = {"model__warmup_steps": 0, "train__steps": 1, "eval__episodes": 2, "eval__every": 0}
    summary = train(small(tmp_path, record__price=3600, **settings), console=quiet())
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert summary["cost"] == pytest.approx(sum(row.get("time/total_s", 0.0) for row in rows))
    assert summary["cost"] > 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["cost"] == summary["cost"]
    assert f"<dt>cost</dt><dd>{format_money(summary['cost'])}</dd>" in (tmp_path / "run/report.html").read_text()
