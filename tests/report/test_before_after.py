"""The task that a report shows before and after training, and its sentence."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from turnwise.report.before_after import choose_pair
from turnwise.report.html_report import render_report

OUTCOMES = {"+": ("succeeded", 1.0), "-": ("failed", 0.0), "~": ("failed", 0.25)}


def entries(outcomes: str, step: int = 0, evaluation: str | None = None) -> list[dict[str, Any]]:
    """Return an index entry for each outcome, with seeds from 0 on; a space is a task without an episode."""
    of_evaluation = {} if evaluation is None else {"evaluation": evaluation}
    return [
        {"step": step, "environment": "lake", "seed": seed, "status": status, "reward": reward, **of_evaluation}
        for seed, (status, reward) in ((seed, OUTCOMES[mark]) for seed, mark in enumerate(outcomes) if mark != " ")
    ]


def sentence(*index: Sequence[dict[str, Any]]) -> str | None:
    pair = choose_pair(entry for part in index for entry in part)
    return None if pair is None else pair.sentence


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            "--+-",
            "-++-",
            "Of 4 tasks, 1 is solved only after training and 0 only before training. The task with seed 1 failed "
            "before training with reward 0.000 and succeeded after training with reward 1.000.",
        ),
        (
            "+-",
            "--",
            "Of 2 tasks, 0 are solved only after training and 1 only before training. The task with seed 0 succeeded "
            "before training with reward 1.000 and failed after training with reward 0.000.",
        ),
        (
            "--",
            "-~",
            "Of 2 tasks, 0 are solved only after training and 0 only before training. The task with seed 1 failed "
            "before training with reward 0.000 and failed after training with reward 0.250.",
        ),
    ],
)
def test_task_is_one_whose_outcome_changed_most(before: str, after: str, expected: str) -> None:
    assert sentence(entries(before, 0, "before"), entries(after, 9, "after")) == expected


def test_run_without_evaluations_compares_a_task_of_first_and_last_step() -> None:
    chosen = sentence(entries("-+", 1), entries("++", 5), entries("+", 9))
    assert chosen is not None
    assert chosen.startswith("Of 1 task, 1 is solved only in step 9 and 0 only in step 1. The task with seed 0")


def test_without_a_common_task_nothing_is_chosen() -> None:
    assert sentence() is None
    assert sentence(entries("-", 0, "before")) is None
    assert sentence(entries("-", 1), entries(" +", 2)) is None
    assert choose_pair([{"step": 1, "seed": "x"}, {"seed": 1}]) is None


def test_first_episode_of_each_task_counts() -> None:
    again = entries("-", 0, "after")
    chosen = choose_pair([*entries("-", 0, "before"), *entries("+", 9, "after"), *again])
    assert chosen is not None and chosen.after["status"] == "succeeded"


def write_run(path: Path) -> Path:
    """Write a run with one task, evaluated before and after training."""
    (path / "trajectories").mkdir(parents=True)
    (path / "config.toml").write_text('[env]\nkind = "lake"\n')
    (path / "metrics.jsonl").write_text("")
    index = []
    for name, mark, text in (("before", "-", "I go <b>left</b>"), ("after", "+", "I go right")):
        (entry,) = entries(mark, 0, name)
        turns = [{"message": {"role": "assistant", "content": text}, "reward": 0.0, "action_ids": [1]}]
        row = {**entry, "task": {"env": "lake", "seed": 0}, "turns": turns}
        (path / f"trajectories/eval_{name}_000000.jsonl").write_text(json.dumps(row) + "\n")
        index.append({**entry, "offset": 0, "length": len(json.dumps(row))})
    (path / "trajectories/index.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in index))
    return path


def test_report_shows_both_episodes_side_by_side(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    page = render_report(run)
    section = page[page.index("Before and after") : page.index("<h2>Curves")]
    assert "1 is solved only after training" in section
    assert section.index("I go &lt;b&gt;left") < section.index("I go right")
    assert section.count("<article") == 2
    (run / "trajectories/eval_after_000000.jsonl").unlink()
    assert "Before and after" not in render_report(run)
