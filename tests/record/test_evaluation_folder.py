import json
from pathlib import Path

import pytest

from episodes_for_tests import name_token, task_of, trajectory_of, turn_of
from turnwise.core.errors import UserError
from turnwise.core.trajectory import Trajectory
from turnwise.record.evaluation_folder import EvaluationFolder, read_plan

PLAN = {"environment": "test", "tries": 1}


def episode(index: int, member: int = 0) -> Trajectory:
    return trajectory_of([turn_of([1, 2], [3], reward=0.25)], task=task_of("test", index), member=member)


def decode(ids: object) -> str:
    return f"text of {ids}"


def started(path: Path) -> EvaluationFolder:
    folder = EvaluationFolder(path)
    folder.write_plan(PLAN, {"tiny": "seed = 0\n"})
    return folder


def test_evaluation_folder_round_trips_episodes(tmp_path: Path) -> None:
    with started(tmp_path / "a") as folder:
        assert folder.is_new
        for number in range(3):
            folder.add_episode("tiny", episode(number), number, decode, name_token)
    with EvaluationFolder(tmp_path / "a") as folder:
        assert not folder.is_new
        assert folder.read_trajectories("tiny") == [episode(number) for number in range(3)]
        assert folder.read_trajectories("other") == []
    row = json.loads((tmp_path / "a/trajectories/tiny.jsonl").read_text().splitlines()[2])
    assert (row["group"], row["turns"][0]["context"]) == (2, "text of (1, 2)")
    assert read_plan(tmp_path / "a") == PLAN
    assert (tmp_path / "a/models/tiny.toml").read_text() == "seed = 0\n"


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_evaluation_folder_drops_a_partial_line(tmp_path: Path, cut: int) -> None:
    with started(tmp_path / "a") as folder:
        for number in range(2):
            folder.add_episode("tiny", episode(number), number, decode, name_token)
    path = tmp_path / "a/trajectories/tiny.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    with EvaluationFolder(tmp_path / "a") as folder:
        assert folder.read_trajectories("tiny") == [episode(0)]
        folder.add_episode("tiny", episode(1), 1, decode, name_token)
        assert folder.read_trajectories("tiny") == [episode(0), episode(1)]


def test_evaluation_folder_has_one_writer(tmp_path: Path) -> None:
    with (
        started(tmp_path / "a"),
        pytest.raises(UserError, match=r"another process .* choose another folder"),
    ):
        EvaluationFolder(tmp_path / "a")
    EvaluationFolder(tmp_path / "a").__exit__(None, None, None)


def test_evaluation_folder_refuses_foreign_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/thesis.tex").write_text("x")
    with pytest.raises(UserError, match=r"has other files \(thesis.tex\). Choose another folder"):
        EvaluationFolder(tmp_path / "a")
    (tmp_path / "b").write_text("x")
    with pytest.raises(UserError, match="is a file, not a folder"):
        EvaluationFolder(tmp_path / "b")
    with pytest.raises(UserError, match="is not an evaluation"):
        read_plan(tmp_path / "a")


def test_evaluation_folder_removes_a_failed_start_only(tmp_path: Path) -> None:
    with pytest.raises(UserError), started(tmp_path / "a"):
        raise UserError("no such model")
    assert not (tmp_path / "a").exists()
    with pytest.raises(UserError), started(tmp_path / "a") as folder:
        folder.add_episode("tiny", episode(0), 0, decode, name_token)
        raise UserError("the endpoint went away")
    with pytest.raises(UserError), EvaluationFolder(tmp_path / "a"):
        raise UserError("again")
    with EvaluationFolder(tmp_path / "a") as folder:
        assert folder.read_trajectories("tiny") == [episode(0)]


def test_evaluation_folder_keeps_results_until_the_next_plan(tmp_path: Path) -> None:
    with started(tmp_path / "a") as folder:
        folder.write_results({"success": float("nan"), "tasks": 3}, "<svg/>")
        summary = json.loads((tmp_path / "a/summary.json").read_text())
        assert summary == {"success": None, "tasks": 3, "nonfinite": ["success"]}
        assert (tmp_path / "a/success.svg").read_text() == "<svg/>"
        folder.write_plan(PLAN, {})
        assert not (tmp_path / "a/summary.json").exists()
