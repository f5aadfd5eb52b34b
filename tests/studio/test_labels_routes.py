"""Episodes are labelled through the studio's routes."""

import json
from pathlib import Path

import pytest
from studio_for_tests import Page

from turnwise.core.trajectory import TokenName
from turnwise.record.labels import LABELS_FILE, count_labels
from turnwise.record.run_folder import RunFolder


def write_run(name: str) -> Path:
    run, turn = Path("runs") / name, {"action_ids": [1], "context_ids": [2]}
    rows = [
        {
            "step": 1,
            "group": 0,
            "member": member,
            "task": {"env": "bandit", "seed": 7},
            "status": "failed",
            "reward": float(member),
            "tokens": 1,
            "turns": [turn],
        }
        for member in range(2)
    ]
    config = '[env]\nkind = "bandit"\n[env.params]\nlow = 0.25\n'
    with RunFolder.create(run, config) as folder:
        folder.write_trajectories(1, rows, lambda token: TokenName(id=token, text=str(token), special=False))
    return run


def test_label_is_stored_in_the_run_folder(page: Page) -> None:
    run = write_run("one")
    assert page.get("label", run="one", number=1) == {"label": "none"}
    assert page.post("label", run="one", number=1, label="good") == {"label": "good"}
    assert page.get("label", run="one", number=1) == {"label": "good"}
    assert page.get("label", run="one", number=0) == {"label": "none"}
    stored = json.loads((run / LABELS_FILE).read_text())
    assert (stored["step"], stored["member"], stored["label"]) == (1, 1, "good")
    page.post("label", run="one", number=1, label="none")
    assert count_labels(run) == {}


def test_label_of_a_replaced_episode_does_not_count(page: Page) -> None:
    run = write_run("one")
    page.post("label", run="one", number=0, label="bad")
    file = run / "trajectories/step_000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b"[1]", b"[9]", 1))
    assert page.get("label", run="one", number=0) == {"label": "none"}


def test_labels_come_with_the_commands_that_train_on_them(page: Page) -> None:
    write_run("one")
    page.post("label", run="one", number=0, label="bad")
    page.post("label", run="one", number=1, label="good")
    found = page.get("labels", run="one")
    assert (found["good"], found["bad"], found["file"]) == (1, 1, "runs/one/labels.jsonl")
    sft, dpo = found["commands"]["demonstrations"], found["commands"]["preferences"]
    assert sft.endswith("sft bandit --env.params.low 0.25 --demos runs/one/labels.jsonl --model.name runs/one")
    assert "train --from runs/one --model.name runs/one --data runs/one/labels.jsonl --algo.preset dpo" in dpo


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"run": "one", "number": 5, "label": "good"}, "No trajectory 5"),
        ({"run": "two", "number": 0, "label": "good"}, "No run"),
        ({"run": "../one", "number": 0, "label": "good"}, "No run"),
        ({"run": "one", "number": 0, "label": "best"}, "label"),
    ],
)
def test_wrong_label_is_refused_in_one_line(page: Page, body: dict[str, object], problem: str) -> None:
    write_run("one")
    assert problem in page.error("label", **body)
    assert not (Path("runs/one") / LABELS_FILE).exists()
