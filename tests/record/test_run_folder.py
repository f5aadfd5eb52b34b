import errno
import io
import json
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes_for_tests import name_token
from processes_for_tests import forked_with_output
from turnwise.core.errors import UserError
from turnwise.core.images import image_token_id
from turnwise.files.disk import FolderLock
from turnwise.record import run_folder
from turnwise.record.rows import Record, read_records
from turnwise.record.run_folder import RunFolder

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def row(step: int, group: int = 0, member: int = 0, text: str = "x") -> dict[str, object]:
    return {
        "step": step,
        "group": group,
        "member": member,
        "task": {"env": "bandit", "seed": 7 + group, "split": "train", "params": {}},
        "status": "succeeded",
        "reward": 0.1 + 0.2,
        "tokens": 3,
        "turns": [{"context_ids": [group, 7], "action_ids": [member, 8]}],
        "text": text,
    }


def record(row: dict[str, object]) -> Record:
    return read_records([row])[0]


def filled(path: Path, steps: int) -> RunFolder:
    folder = RunFolder.create(path, "seed = 0\n")
    for step in range(steps):
        rows = [row(step, group, member) for group in range(2) for member in range(2)]
        folder.write_trajectories(step, rows, name_token)
        folder.append_metrics(record({"step": step, "rollout/success": step / 10}))
        folder.write_trajectories(step, [row(step) | {"evaluation": "validation"}], name_token, evaluation="validation")
        folder.append_metrics(record({"step": step, "eval/name": "validation", "eval/success": step / 10}))
    return folder


def contents(path: Path) -> dict[str, bytes]:
    other = (".lock", "tokens.jsonl")  # token names are never discarded
    files = [file for file in path.rglob("*") if file.is_file() and file.name not in other]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def test_create_writes_the_config_and_refuses_an_existing_run(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a"
    with RunFolder.create(path, "seed = 3\n") as folder:
        assert (folder.path / "config.toml").read_text() == "seed = 3\n"
        assert folder.checkpoints.is_dir()
    with pytest.raises(UserError, match=r"or choose another record.name"):
        RunFolder.create(path, "seed = 4\n")
    assert path.joinpath("config.toml").read_text() == "seed = 3\n"


def test_create_refuses_and_keeps_foreign_folders(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match=r"not empty. Choose another record.name"):
        RunFolder.create(tmp_path, "")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_create_accepts_a_folder_killed_before_its_config(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("123")
    (tmp_path / ".config.toml.part").write_text("se")
    with RunFolder.create(tmp_path, "seed = 0\n") as folder:
        assert (folder.path / "config.toml").read_text() == "seed = 0\n"


@pytest.mark.parametrize("folder", [".", "trajectories", "sources"])
def test_open_removes_partial_files_of_a_killed_write(tmp_path: Path, folder: str) -> None:
    filled(tmp_path / "run", 1).close()
    partial = tmp_path / "run" / folder / ".env.py.part"
    partial.parent.mkdir(exist_ok=True)
    partial.write_text("class En")
    with RunFolder.open(tmp_path / "run", writing=True):
        assert not partial.exists()


def test_create_explains_an_impossible_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Cannot write .*record.folder") as caught:
        RunFolder.create(tmp_path / "file" / "run", "")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="is a file"):
        RunFolder.create(tmp_path / "file", "")


def test_remove_if_unused_frees_the_name(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "a", "seed = 3\n") as folder:
        folder.append_metrics(record({"step": 0, "time/warmup_s": 1.0}))
        folder.remove_if_unused()
        assert not folder.path.exists()
        folder.remove_if_unused()
    RunFolder.create(tmp_path / "a", "seed = 4\n").close()


@pytest.mark.parametrize("content", ["step", "trajectories", "checkpoint", "foreign"])
def test_remove_if_unused_keeps_steps_and_foreign_files(tmp_path: Path, content: str) -> None:
    with RunFolder.create(tmp_path / "a", "") as folder:
        if content == "step":
            folder.append_metrics(record({"step": 1}))
        elif content == "trajectories":
            folder.write_trajectories(1, [row(1)], name_token)
        else:
            (folder.checkpoints / "step_000001" if content == "checkpoint" else folder.path / "thesis").mkdir()
        before = contents(folder.path)
        folder.remove_if_unused()
        assert (folder.path / "config.toml").exists() and contents(folder.path) == before


@needs_full
def test_remove_if_unused_keeps_a_folder_after_a_failed_write(tmp_path: Path) -> None:
    """The error of the failed write says how to resume the run."""
    with RunFolder.create(tmp_path / "a", "") as folder:
        folder.path.joinpath(".summary.json.part").symlink_to(FULL)
        with pytest.raises(UserError, match="then start again from the beginning"):
            folder.write_summary({})
        folder.remove_if_unused()
        assert (folder.path / "config.toml").exists()
        folder.write_summary({})
        folder.summary_path.unlink()
        folder.remove_if_unused()
        assert not folder.path.exists()


def test_open_refuses_other_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder.open(tmp_path / "missing")


def test_run_folder_has_one_writer_and_any_readers(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "") as first:
        first.append_metrics(record({"step": 0}))
        with pytest.raises(UserError, match=rf"another process \(pid {os.getpid()}\).*record.name"):
            RunFolder.open(tmp_path, writing=True)
        assert RunFolder.open(tmp_path).read_metrics() == [{"step": 0}]
    with RunFolder.open(tmp_path, writing=True) as second:
        second.append_metrics(record({"step": 1}))


def test_create_checks_again_after_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lock_after_another_run(path: Path) -> FolderLock:
        (path / "config.toml").write_text("seed = 1")
        return FolderLock(path)

    monkeypatch.setattr(run_folder, "FolderLock", lock_after_another_run)
    with pytest.raises(UserError, match="already contains a run"):
        RunFolder.create(tmp_path / "run", "ours")
    assert (tmp_path / "run" / "config.toml").read_text() == "seed = 1"


def test_writing_needs_the_lock(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "").close()
    with pytest.raises(RuntimeError, match="writing=True"):
        RunFolder.open(tmp_path).append_metrics(record({"step": 0}))
    assert not (tmp_path / "metrics.jsonl").exists()


def hold_lock(path: Path) -> None:
    with RunFolder.create(path, ""):
        sys.stdout.write("locked\n")
        time.sleep(600)


def test_lock_is_released_when_the_process_is_killed(tmp_path: Path) -> None:
    with forked_with_output(hold_lock, tmp_path) as (process, lines):
        assert lines.readline() == "locked\n"
        with pytest.raises(UserError, match=rf"pid {process.pid}"):
            RunFolder.open(tmp_path, writing=True)
        process.kill()
    RunFolder.open(tmp_path, writing=True).close()


def test_metrics_round_trip(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "") as folder:
        assert folder.read_metrics() == []
        rows = [{"step": 0, "loss": 0.1 + 0.2}, {"step": 1, "loss": -1e-300, "phases": {"rollout": 1.5}}]
        for one in rows:
            folder.append_metrics(record(one))
        assert folder.read_metrics() == rows


def test_nonfinite_metrics_become_null_and_are_listed(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "") as folder:
        metrics = {"step": 0, "a": float("nan"), "b": 1.0, "c": float("-inf"), "phases": {"x": [float("inf"), 2.0]}}
        folder.append_metrics(record(metrics))
        text = folder.metrics_path.read_text()
        read = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        expected = {"step": 0, "a": None, "b": 1.0, "c": None, "phases": {"x": [None, 2.0]}}
        assert read == {**expected, "nonfinite": ["a", "c", "phases.x.0"]}


@given(cut=st.integers(1, 200))
def test_metrics_truncated_at_any_byte_lose_only_the_partial_row(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("run")
    rows = [{"step": step, "value": "é" * step} for step in range(4)]
    with RunFolder.create(path, "") as folder:
        for one in rows:
            folder.append_metrics(record(one))
    data = folder.metrics_path.read_bytes()[:cut]
    folder.metrics_path.write_bytes(data)
    whole = data.count(b"\n")
    assert folder.read_metrics() == rows[:whole]
    with RunFolder.open(path, writing=True) as resumed:  # the next row must not be glued to the torn one
        resumed.append_metrics(record({"step": 9}))
        assert resumed.read_metrics() == [*rows[:whole], {"step": 9}]


@pytest.mark.parametrize("line", [b'{"step":1,"a"', b"\x00\x00", b"[1]", b'{"a":1}', b"[" * 100_000])
def test_read_metrics_names_a_corrupt_line(tmp_path: Path, line: bytes) -> None:
    with filled(tmp_path, 2) as folder:
        lines = folder.metrics_path.read_bytes().splitlines()
        lines[2] = line
        folder.metrics_path.write_bytes(b"\n".join(lines) + b"\n")
        with pytest.raises(UserError, match=r"metrics.jsonl line 3 "):
            folder.read_metrics()
        before = contents(tmp_path)
        with pytest.raises(UserError, match=r"metrics.jsonl line 3 "):
            folder.discard_from(1)
        assert contents(tmp_path) == before


def test_read_trajectory_follows_the_index(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "") as folder:
        rows = [row(12, group, member, text="é\n\u2028\ud800" * member) for group in range(3) for member in range(2)]
        folder.write_trajectories(12, rows, name_token)
        folder.write_trajectories(13, [row(13)], name_token)
        index = folder.read_index()
        assert [folder.read_trajectory(entry) for entry in index] == [*rows, row(13)]
        entry = dict(index[3])
        data = (tmp_path / "trajectories" / "step_000012.jsonl").read_bytes()
        raw = data[entry["offset"] : entry["offset"] + entry["length"]]
        assert json.loads(raw) == rows[3]
        del entry["offset"], entry["length"]
        assert entry == {
            "step": 12,
            "group": 1,
            "member": 1,
            "environment": "bandit",
            "seed": 8,
            "status": "succeeded",
            "reward": 0.1 + 0.2,
            "tokens": 3,
            "turns": 1,
        }


def test_read_trajectory_explains_a_wrong_index(tmp_path: Path) -> None:
    with filled(tmp_path, 1) as folder:
        entry = folder.read_index()[1]
        for wrong in ({"offset": entry["offset"] + 1}, {"step": 77}, {"offset": 0, "length": 0}):
            with pytest.raises(UserError, match="does not match its index"):
                folder.read_trajectory({**entry, **wrong})


def test_read_index_separates_evaluations_from_training(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "") as folder:
        evaluated = {name: row(2) | {"evaluation": name, "text": name} for name in ("before", "after")}
        for name, each in evaluated.items():
            folder.write_trajectories(2, [each], name_token, evaluation=name)
        folder.write_trajectories(2, [row(2)], name_token)
        assert [folder.read_trajectory(entry) for entry in folder.read_index()] == [row(2)]
        for name, each in evaluated.items():
            assert [folder.read_trajectory(entry) for entry in folder.read_index(name)] == [each]


def test_discard_from_drops_evaluations_without_metrics(tmp_path: Path) -> None:
    """A kill between an evaluation's trajectories and its metrics: the evaluation is repeated."""
    episodes = {name: row(2) | {"evaluation": name} for name in ("before", "after")}
    with filled(tmp_path / "whole", 3) as whole, filled(tmp_path / "killed", 3) as killed:
        for folder in (whole, killed):
            folder.write_trajectories(2, [episodes["before"]], name_token, evaluation="before")
            folder.append_metrics(record({"step": 2, "eval/name": "before"}))
        killed.write_trajectories(2, [episodes["after"]], name_token, evaluation="after")
        killed.discard_from(3)
        assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
        killed.write_trajectories(2, [episodes["after"]], name_token, evaluation="after")
        assert [killed.read_trajectory(entry) for entry in killed.read_index("after")] == [episodes["after"]]


def test_remove_if_unused_ignores_the_evaluation_before_training(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "a", "") as folder:
        folder.write_trajectories(0, [row(0) | {"evaluation": "before"}], name_token, evaluation="before")
        folder.append_metrics(record({"step": 0, "eval/name": "before"}))
        folder.remove_if_unused()
        assert not folder.path.exists()


def test_write_trajectories_refuses_a_written_step(tmp_path: Path) -> None:
    with filled(tmp_path, 1) as folder, pytest.raises(RuntimeError, match="already written"):
        folder.write_trajectories(0, [row(0)], name_token)


@pytest.mark.parametrize("kept", [0, 1, 3, 5, 9])
def test_discard_from_equals_a_shorter_run(tmp_path: Path, kept: int) -> None:
    with filled(tmp_path / "long", 5) as long, filled(tmp_path / "short", min(kept, 5)):
        (long.trajectories / ".step_000005.jsonl.part").write_text("torn")
        long.discard_from(kept)
        expected = contents(tmp_path / "short")
        found = {name: data for name, data in contents(tmp_path / "long").items() if data or name in expected}
        assert found == expected
        long.write_trajectories(kept + 5, [row(kept + 5)], name_token)


def test_discard_from_can_be_repeated_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(tmp_path / "short", 2), filled(tmp_path / "long", 5) as long:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                long.discard_from(2)
        long.close()
        with RunFolder.open(tmp_path / "long", writing=True) as resumed:
            resumed.discard_from(2)
        assert contents(tmp_path / "long") == contents(tmp_path / "short")


def test_write_summary_replaces_nonfinite_numbers(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "") as folder:
        folder.write_summary({"success_after": 0.5, "interval": (0.4, 0.6), "loss": float("nan")})
        assert json.loads(folder.summary_path.read_text()) == {
            "success_after": 0.5,
            "interval": [0.4, 0.6],
            "loss": None,
            "nonfinite": ["loss"],
        }


@needs_full
def test_full_disk_is_explained_and_loses_nothing(tmp_path: Path) -> None:
    with filled(tmp_path, 2) as folder:
        folder.summary_path.with_name(".summary.json.part").symlink_to(FULL)
        with pytest.raises(
            UserError, match=r"No disk space .* then start again .*`turnwise train --resume .*`"
        ) as caught:
            folder.write_summary({"a": 1})
        assert "\n" not in str(caught.value)
        assert not folder.summary_path.exists()
        folder.trajectories_path(2).with_name(".step_000002.jsonl.part").symlink_to(FULL)
        index = folder.index_path.read_bytes()
        with pytest.raises(UserError, match="No disk space"):
            folder.write_trajectories(2, [row(2)], name_token)
        assert folder.index_path.read_bytes() == index
        assert not folder.trajectories_path(2).exists()
        folder.metrics_path.unlink()
        folder.metrics_path.symlink_to(FULL)
        with pytest.raises(UserError, match="No disk space"):
            folder.append_metrics(record({"step": 2}))


@needs_full
def test_full_disk_at_the_start_leaves_no_run(tmp_path: Path) -> None:
    (tmp_path / ".config.toml.part").symlink_to(FULL)
    with pytest.raises(UserError, match=r"No disk space left .*nothing was started"):
        RunFolder.create(tmp_path, "seed = 0\n")
    with RunFolder.create(tmp_path, "seed = 0\n") as folder:  # the lock was given back, too
        assert (folder.path / "config.toml").read_text() == "seed = 0\n"


def test_failed_append_leaves_no_partial_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = Path.open

    class Torn:
        def __init__(self, file: object) -> None:
            self.file, self.calls = file, 0

        def __enter__(self) -> "Torn":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> int:
            self.calls += 1
            if self.calls > 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.file.write(data[:5])

    def tear(file: io.IOBase) -> io.IOBase | Torn:
        return Torn(file) if file.writable() else file

    with RunFolder.create(tmp_path, "") as folder:
        folder.append_metrics(record({"step": 0}))
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", lambda path, *args, **kwargs: tear(real_open(path, *args, **kwargs)))
            with pytest.raises(UserError, match="No disk space"):
                folder.append_metrics(record({"step": 1}))
        folder.append_metrics(record({"step": 2}))
        assert folder.read_metrics() == [{"step": 0}, {"step": 2}]


def test_token_names_are_written_once_also_after_a_kill(tmp_path: Path) -> None:
    with filled(tmp_path / "run", 2):
        pass
    path = tmp_path / "run/trajectories/tokens.jsonl"
    named = [json.loads(line) for line in path.read_text().splitlines()]
    assert named == [{"id": each, "text": f"<{each}>", "special": each == 7} for each in (0, 1, 7, 8)]
    path.write_bytes(path.read_bytes()[:-4])
    with RunFolder.open(tmp_path / "run", writing=True) as folder:
        folder.write_trajectories(5, [row(5)], name_token)
        assert [json.loads(line) for line in path.read_text().splitlines()] == named


def test_token_names_leave_out_tokens_of_images(tmp_path: Path) -> None:
    with filled(tmp_path / "run", 1) as folder:
        turn = {"context_ids": [1, image_token_id("0" * 13, 0), 3], "action_ids": [1]}
        folder.write_trajectories(5, [row(5) | {"turns": [turn]}], name_token)
    lines = (tmp_path / "run/trajectories/tokens.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines][-1] == 3


def test_discard_from_drops_later_alarms(tmp_path: Path) -> None:
    with filled(tmp_path / "run", 3) as folder:
        folder.append_alarm(1, "entropy fell")
        folder.append_alarm(2, "the gradient grew")
        assert [each["text"] for each in folder.read_alarms()] == ["entropy fell", "the gradient grew"]
        folder.discard_from(2)
        assert folder.read_alarms() == [{"step": 1, "text": "entropy fell"}]
