"""Routes of the page of a run: its row, parent, checkpoints and alarms."""

import json
from pathlib import Path

import pytest
from server_for_tests import CONFIG, ask, client, get, make_evaluation, make_run

from turnwise.viewer import runs
from turnwise.viewer.run_page import CHECKPOINTS


def write_checkpoint(run: Path, name: str, step: int, size: int) -> None:
    folder = run / CHECKPOINTS / name
    (folder / "learner").mkdir(parents=True)
    state = json.dumps({"step": step}).encode()
    (folder / "state.json").write_bytes(state)
    (folder / "learner/rank0.bin").write_bytes(b"x" * (size - len(state)))


def write_child(folder: Path, parent: str, *changes: tuple[str, str]) -> None:
    config = CONFIG + f'[record]\nname = "{folder.name}"\nparent = "{parent}"\n'
    for before, after in changes:
        assert before in config
        config = config.replace(before, after)
    make_run(folder)
    (folder / "config.toml").write_text(config)


def test_row_is_that_of_the_list(tmp_path: Path) -> None:
    make_run(tmp_path / "one", metrics=[{"step": 2, "rollout/success": 0.5, "time/total_s": 3.0}])
    asked = client(tmp_path)
    assert ask(asked, "run", run="one")["row"] == ask(asked, "runs")["runs"][0]


def test_row_of_one_run_reads_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        make_run(tmp_path / f"run{number}", metrics=[{"step": 2, "rollout/success": 0.5}])
    read, original = list[Path](), runs.RunEntry._update

    def update(entry: runs.RunEntry, budget: runs.ReadBudget) -> dict[str, object]:
        read.append(entry._folder)
        return original(entry, budget)

    monkeypatch.setattr(runs.RunEntry, "_update", update)
    ask(tmp_path, "run", run="run3")
    assert read == [tmp_path / "run3"]


@pytest.mark.parametrize("moved", [False, True])
def test_changes_against_the_parent(tmp_path: Path, moved: bool) -> None:
    """A parent is found by its name after the folder of runs was moved."""
    make_run(tmp_path / "parent")
    parent = "/elsewhere/runs/parent" if moved else str(tmp_path / "parent")
    write_child(tmp_path / "child", parent, ("steps = 10", "steps = 20"), ("size = 4\n", ""))
    assert ask(tmp_path, "run", run="child")["parent"] == {
        "name": "parent",
        "id": "parent",
        "changes": [
            {"name": "env.params", "before": None, "after": "{}"},
            {"name": "env.params.size", "before": 4, "after": None},
            {"name": "train.steps", "before": 10, "after": 20},
        ],
    }
    assert ask(tmp_path, "run", run="parent")["parent"] is None


def test_parent_outside_the_folder_is_only_named(tmp_path: Path) -> None:
    make_run(tmp_path / "secret")
    write_child(tmp_path / "runs/child", str(tmp_path / "secret"))
    assert ask(tmp_path / "runs", "run", run="child")["parent"] == {"name": "secret", "id": None, "changes": None}


def test_checkpoints_have_step_size_and_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_checkpoint(run, "step_000010", 10, 1000)
    write_checkpoint(run, "step_000020", 20, 2000)
    write_checkpoint(run, "best", 10, 3000)
    (run / CHECKPOINTS / "step_000030").mkdir()  # being written
    (run / CHECKPOINTS / "step_000040").symlink_to(tmp_path)
    found = ask(tmp_path, "run", run="run")["checkpoints"]
    assert [(each["name"], each["step"], each["bytes"]) for each in found] == [
        ("step_000020", 20, 2000),
        ("best", 10, 3000),
        ("step_000010", 10, 1000),
    ]
    assert found[0]["modified"] == (run / CHECKPOINTS / "step_000020/learner/rank0.bin").stat().st_mtime


def test_alarms_come_with_advice(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    texts = ["rewards: echo trap", "<b>something else</b>"]
    (run / "alarms.jsonl").write_text("".join(json.dumps({"step": 3, "text": text}) + "\n" for text in texts))
    first, second = ask(tmp_path, "run", run="run")["alarms"]
    assert first["advice"].startswith("The agent repeats itself") and second["advice"] is None


def test_evaluation_and_unknown_run(tmp_path: Path) -> None:
    make_evaluation(tmp_path / "evaluation", {"one": []})
    answer = ask(tmp_path, "run", run="evaluation")
    assert answer["row"]["kind"] == "evaluation"
    assert (answer["parent"], answer["checkpoints"], answer["alarms"]) == (None, [], [])
    assert get(tmp_path, "run", run="nothing").status_code == 404
