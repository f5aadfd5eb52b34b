"""`turnwise data`, and datasets that go out of a run and into another."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from runs_for_tests import printed, quiet, small
from turnwise.cli.main import main
from turnwise.core.errors import UserError
from turnwise.data.settings import DataConfig
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import open_replay, trajectory_from_row
from turnwise.run.dataset_rows import from_dataset_row, to_dataset_row
from turnwise.run.stored_sources import open_source
from turnwise.run.train import train


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("played")
    still = {"train__learning_rate": 1e-12, "algo__entropy_coef": 0.0, "eval__temperature": 0.0}
    config = small(folder, train__steps=8, algo__advantage="grpo", algo__kl_coef=0.0, eval__every=0, **still)
    train(config, console=quiet())
    return folder / "run"


def test_export_writes_training_traces_of_the_sampled_tokens(played: Path, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    assert main(["data", "export", str(played), "--to", str(folder), "--format", "traces"]) == 0
    rows = [json.loads(line) for line in (folder / "traces.jsonl").read_text().splitlines()]
    run = RunFolder.open(played)
    recorded = [trajectory_from_row(run.read_trajectory(entry)) for entry in run.read_index()]
    assert [row["reward"] for row in rows] == [trajectory.total_reward for trajectory in recorded]
    for row, trajectory in zip(rows, recorded, strict=True):
        turns, context = row["trace"]["turns"], list[int]()
        for traced, turn in zip(turns, trajectory.turns, strict=True):
            context = [*(context if turn.extends else []), *turn.context_ids]
            assert traced["prompt_token_ids"] == context
            context += turn.action_ids
            assert (traced["completion_token_ids"], sum(traced["loss_mask"])) == (
                list(turn.action_ids),
                len(turn.action_ids),
            )
            assert traced["per_token_logps"] == list(turn.action_logprobs)
        assert len({turn["node_id"] for turn in turns}) == len(turns)
    assert main(["data", "export", str(played), "--to", str(folder), "--format", "traces"]) == 2


def test_inspect_prints_the_contents_of_a_run(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", str(played)]) == 0
    shown = capsys.readouterr().out
    entries = RunFolder.open(played).read_index()
    assert f"{len(entries)}" in shown
    assert f"{sum(entry['tokens'] for entry in entries):,}" in shown
    assert "0 to 7" in shown
    assert re.search(r"sampled\s+at temperature 1 64\n", shown)
    assert main(["data", "inspect", str(played), "--episodes", "evaluation"]) == 0
    assert re.search(r"sampled\s+greedily \d+\n", capsys.readouterr().out)


def test_export_keeps_ids_and_logprobs_exactly(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dataset"
    assert main(["data", "export", str(played), "--to", str(folder)]) == 0
    assert "wrote 64 episodes" in capsys.readouterr().out
    run = RunFolder.open(played)
    recorded = [trajectory_from_row(run.read_trajectory(entry)) for entry in run.read_index()]
    rows = [json.loads(line) for line in (folder / "data" / "train.jsonl").read_text().splitlines()]
    assert [trajectory_from_row(from_dataset_row(row)) for row in rows] == recorded
    assert all("action" in turn and "context" in turn for row in rows for turn in row["turns"])
    assert main(["data", "export", str(played), "--to", str(folder)]) == 2

    settings = {"algo__advantage": "clone", "algo__loss": "reinforce", "algo__kl_coef": 0.0, "eval__every": 0}
    config = small(tmp_path, data__sources=[str(folder), str(played)], train__steps=1, **settings)
    train(config, console=quiet())
    replay = open_replay(tmp_path / "run" / "replay", 1000)
    assert len(replay) == 64
    assert all(entry.sampled for entry in replay.entries)


def test_evaluate_returns_the_mean_for_the_policy_that_played(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "evaluate", str(played), "--on", str(played)]) == 0
    pairs = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line.strip())
    found = {name.strip(): value.strip() for name, value in pairs.items()}
    assert found["effective sample size"] == "64.0 of 64 episodes"
    assert found["expected return"] == found["return of the episodes"]


def remove_samplers(file: Path) -> None:
    """Rewrite a file of episodes as earlier versions wrote it."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(row.pop("sampler") for row in rows)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_evaluate_refuses_exported_greedy_episodes(
    played: Path, tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dataset"
    assert main(["data", "export", str(played), "--to", str(folder), "--episodes", "evaluation"]) == 0
    file = folder / "data" / "train.jsonl"
    if ending == "parquet":
        table = pytest.importorskip("pyarrow.json").read_json(file)
        pytest.importorskip("pyarrow.parquet").write_table(table, file.with_suffix(".parquet"))
        file.unlink()
    capsys.readouterr()
    for source in (folder, played):
        assert main(["data", "evaluate", str(played), "--on", str(source), "--episodes", "evaluation"]) == 2
        assert "1 was sampled greedily, so it cannot evaluate another policy" in capsys.readouterr().err


def test_evaluate_refuses_episodes_of_an_unknown_sampler(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "dataset"
    assert main(["data", "export", str(played), "--to", str(folder)]) == 0
    remove_samplers(folder / "data" / "train.jsonl")
    assert main(["data", "evaluate", str(played), "--on", str(folder)]) == 2
    assert "line 1 was recorded without sampling settings" in capsys.readouterr().err
    assert main(["data", "inspect", str(folder)]) == 0
    assert "unknown 64" in capsys.readouterr().out


def test_export_adds_the_sampler_to_runs_of_earlier_versions(played: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(played, old)
    for file in (old / "trajectories").glob("[se]*_*.jsonl"):
        remove_samplers(file)
    assert main(["data", "export", str(old), "--to", str(tmp_path / "dataset"), "--episodes", "all"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "dataset" / "data" / "train.jsonl").read_text().splitlines()]
    found = {("evaluation" in row, row["sampler"]["temperature"]) for row in rows}
    assert found == {(False, 1.0), (True, 0.0)}


def test_greedy_evaluations_leave_training_logprobs_exact(played: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    assert main(["data", "export", str(played), "--to", str(folder), "--episodes", "all"]) == 0
    settings = {"algo__advantage": "clone", "algo__loss": "reinforce", "algo__kl_coef": 0.0, "eval__every": 0}
    for source in (played, folder):
        console = quiet()
        given = {"data__sources": [str(source)], "data__episodes": "all", "record__name": f"from_{source.name}"}
        train(small(tmp_path, train__steps=1, **given, **settings), console=console)
        entries = open_replay(tmp_path / f"from_{source.name}" / "replay", 1000).entries
        assert sum(entry.sampled for entry in entries) == 64
        greedy = sum(not entry.sampled for entry in entries)
        shown = " ".join(printed(console).split())
        assert f"64 episodes with the log-probabilities of their sampler, {greedy} episodes without" in shown
        assert "(they were sampled greedily)" in shown


def test_evaluate_refuses_insufficient_data(played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    lines = (played / "trajectories" / "step_000001.jsonl").read_text().splitlines(keepends=True)
    (folder / "some.jsonl").write_text("".join(lines[:5]))
    (folder / "tokens.jsonl").write_bytes((played / "trajectories" / "tokens.jsonl").read_bytes())
    assert main(["data", "evaluate", str(played), "--on", str(folder)]) == 2
    error = capsys.readouterr().err
    assert "the 5 episodes are worth only 5.0" in error
    text = tmp_path / "text.jsonl"
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    text.write_text(json.dumps({"messages": messages, "reward": 1.0}) + "\n")
    assert main(["data", "evaluate", str(played), "--on", str(text)]) == 2
    assert "line 1 was written as text, so it cannot evaluate another policy" in capsys.readouterr().err
    assert main(["data", "inspect", str(text)]) == 2
    assert "line 1 is not a trajectory of a run" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_dataset_files_need_pyarrow(tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    file = folder / f"data.{ending}"
    file.write_bytes(b"not a table")
    assert main(["data", "inspect", str(folder)]) == 2
    error = capsys.readouterr().err
    assert str(file) in error
    assert "needs pyarrow. Run `pip install 'turnwise[datasets]'`" in error or "is damaged" in error


def collect_types(value: Any, path: str, found: dict[str, set[type]]) -> None:
    """Add the types of a JSON value and of its parts by path, nulls aside."""
    if value is not None:
        found.setdefault(path, set()).add(type(value))
    items = (
        value.items()
        if isinstance(value, dict)
        else [("[]", each) for each in value]
        if isinstance(value, list)
        else ()
    )
    for name, each in items:
        collect_types(each, f"{path}.{name}", found)


def test_dataset_row_has_one_type_per_column() -> None:
    turn = {
        "action_ids": [5, 6],
        "policy_version": 3,
        "spans": [["answer", 0, 2]],
        "message": {"role": "assistant", "content": "up"},
        "info": {"success": True, "actions": ["up"]},
        "picture": None,
    }
    other = {**turn, "policy_version": [3, 4], "info": {"success": 0.5}, "images": [{"start": 0}]}
    row = {
        "task": {"env": "sokoban", "seed": 1, "split": "train", "params": {"size": 5}},
        "status": "succeeded",
        "rewards": {"env": 1.0},
        "timings": {},
        "start": {"rows": [["wall"]]},
        "turns": [turn, other],
    }
    renamed = {**row, "task": {**row["task"], "params": {"size": "large"}}, "rewards": {"judge": "NaN"}, "start": None}
    found: dict[str, set[type]] = {}
    exported = [to_dataset_row(each) for each in (row, renamed)]
    for each in exported:
        collect_types(each, "", found)
    assert {path: kinds for path, kinds in found.items() if len(kinds) > 1} == {}
    exported[0]["turns"][0]["images"] = None  # as Arrow returns it
    again = from_dataset_row(exported[0])
    assert again["task"] == row["task"] and again["turns"][0]["info"] == turn["info"]
    assert "images" not in again["turns"][0] and again["turns"][1]["policy_version"] == [3, 4]
    with pytest.raises(UserError, match="Not a trajectory"):
        from_dataset_row({**exported[0], "rewards": "{"})


def test_exported_dataset_survives_arrow(tmp_path: Path, played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read_json = pytest.importorskip("pyarrow.json").read_json  # as datasets.load_dataset does
    parquet, ipc = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow.ipc")
    assert main(["data", "export", str(played), "--to", str(tmp_path / "dataset")]) == 0
    table = read_json(tmp_path / "dataset" / "data" / "train.jsonl")
    for name in ("parquet", "arrow"):
        (tmp_path / name).mkdir()
    parquet.write_table(table, tmp_path / "parquet" / "a.parquet")
    with ipc.new_stream(str(tmp_path / "arrow" / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    run = RunFolder.open(played)
    recorded = [trajectory_from_row(run.read_trajectory(entry)) for entry in run.read_index()]
    capsys.readouterr()
    for name in ("parquet", "arrow"):
        rows = [row for _, row in open_source(tmp_path / name, DataConfig()).rows]
        assert [trajectory_from_row(from_dataset_row(row)) for row in rows] == recorded
        assert main(["data", "inspect", str(tmp_path / name)]) == 0
        assert "0 to 7" in capsys.readouterr().out
