"""The list of many runs: files and bytes read for it."""

import io
import json
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO

import pytest
from server_for_tests import ask, client, line, make_run

from turnwise.config.load import build, to_toml
from turnwise.viewer import runs as runs_module
from turnwise.viewer import settings as settings_module
from turnwise.viewer.runs import RunList, parse_main_settings
from turnwise.viewer.settings import read_main_settings, read_toml
from turnwise.viewer.viewed_folder import ViewedFolder

SUMMARY = {"success_after": 0.5, "interval": [0.4, 0.6], "wall_s": 12.0, "steps": 3, "tokens": 90}


def row(step: int, **more: Any) -> dict[str, Any]:
    own = {"rollout/success": 0.25, "time/total_s": 2.0, "rollout/sampled_tokens": 10, "text": "x" * 1000}
    return {"step": step, **own, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six runs of 100 rows, the first three finished."""
    for number in range(6):
        run = make_run(tmp_path / f"run{number}", metrics=[row(step) for step in range(1, 101)])
        (run / ".lock").write_text("1")
        if number < 3:
            (run / "summary.json").write_text(json.dumps(SUMMARY))
    return tmp_path


class Counted(io.BufferedReader):
    """A file that counts the bytes read from it."""

    def __init__(self, file: BinaryIO, name: str, bytes_read: Counter[str]) -> None:
        super().__init__(io.FileIO(os.dup(file.fileno())))
        file.close()
        self._name, self._bytes_read = name, bytes_read

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._bytes_read[self._name] += len(data)
        return data


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Bytes that the server read, by file; 0 for a file that was only opened."""
    found: Counter[str] = Counter()
    plain = ViewedFolder.open

    def counting(self: ViewedFolder, path: Path, *parts: str) -> BinaryIO:
        name = "/".join((path.name, *parts))
        found[name] += 0
        return Counted(plain(self, path, *parts), name, found)

    monkeypatch.setattr(ViewedFolder, "open", counting)
    yield found


def listed(runs: RunList) -> dict[str, dict[str, Any]]:
    return {found["id"]: found for found in runs.rows()}


def test_run_list_reads_again_only_what_changed(folder: Path, bytes_read: Counter[str]) -> None:
    runs = RunList(ViewedFolder(folder))
    first = listed(runs)
    assert len(first) == 6 and sum(bytes_read.values()) > 300_000
    bytes_read.clear()
    assert listed(runs) == first and not bytes_read, "no file is opened"
    with (folder / "run4/metrics.jsonl").open("ab") as file:
        file.write(line(row(101)))
    (folder / "run1/summary.json").write_text(json.dumps({**SUMMARY, "success_after": 0.75}))
    again = listed(runs)
    assert (again["run4"]["step"], again["run4"]["wall_s"], again["run4"]["tokens"]) == (101, 202.0, 1010)
    assert again["run1"]["success"] == 0.75
    assert bytes_read.keys() == {"run4/metrics.jsonl", "run1/summary.json"}
    assert bytes_read["run4/metrics.jsonl"] < 10_000, "the new row, and the tail that shows the file was not replaced"
    assert {name: own for name, own in again.items() if name not in ("run1", "run4")} == {
        name: own for name, own in first.items() if name not in ("run1", "run4")
    }


def test_run_list_describes_finished_runs_by_their_summary(folder: Path, bytes_read: Counter[str]) -> None:
    found = listed(RunList(ViewedFolder(folder)))["run0"]
    assert (found["status"], found["step"], found["wall_s"], found["tokens"]) == ("finished", 3, 12.0, 90)
    assert (found["success"], found["success_low"], found["success_high"]) == (0.5, 0.4, 0.6)
    assert "run0/metrics.jsonl" not in bytes_read and "run3/metrics.jsonl" in bytes_read


@pytest.mark.parametrize("odd", [{"steps": "3"}, {"interval": [0.1]}, {"tokens": None}, {"wall_s": "NaN"}])
def test_run_list_reads_metrics_if_the_summary_is_incomplete(folder: Path, odd: dict[str, Any]) -> None:
    (folder / "run0/summary.json").write_text(json.dumps(SUMMARY | odd))
    found = listed(RunList(ViewedFolder(folder)))["run0"]
    assert (found["status"], found["step"], found["wall_s"], found["tokens"]) == ("finished", 100, 200.0, 1000)


def test_run_list_reads_metrics_newer_than_the_summary(folder: Path) -> None:
    later = (folder / "run0/summary.json").stat().st_mtime_ns + 10**9
    os.utime(folder / "run0/metrics.jsonl", ns=(later, later))
    assert listed(RunList(ViewedFolder(folder)))["run0"]["step"] == 100


def test_run_list_reads_a_bounded_part_of_the_metrics_at_a_time(
    folder: Path, bytes_read: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "READ_PER_LIST", 60_000)
    monkeypatch.setattr("turnwise.record.jsonl_follower.CHUNK", 20_000)
    runs = RunList(ViewedFolder(folder))
    rows = listed(runs)
    assert [name for name, own in rows.items() if own.get("partial")] == ["run3", "run4", "run5"]
    assert all(rows[name]["step"] == 100 and rows[name]["success"] == 0.25 for name in ("run3", "run4", "run5"))
    assert all(rows[name]["wall_s"] is rows[name]["tokens"] is None for name in ("run3", "run4", "run5"))
    for _ in range(20):
        bytes_read.clear()
        rows = listed(runs)
        assert sum(bytes_read.values()) < 120_000
        if not any(own.get("partial") for own in rows.values()):
            break
    assert {rows[name]["wall_s"] for name in ("run3", "run4", "run5")} == {200.0}
    assert {rows[name]["tokens"] for name in ("run3", "run4", "run5")} == {1000}


def test_slow_run_does_not_block_other_requests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One list waits for a file of run3; other entries and other requests do not."""
    reached, go_on = Event(), Event()
    plain = ViewedFolder.open

    def slow(self: ViewedFolder, path: Path, *parts: str) -> BinaryIO:
        if path.name == "run3" and parts == ("metrics.jsonl",) and not go_on.is_set():
            reached.set()
            assert go_on.wait(60)
        return plain(self, path, *parts)

    runs = RunList(ViewedFolder(folder))
    monkeypatch.setattr(ViewedFolder, "open", slow)
    asked = client(folder)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(listed, runs)
        assert reached.wait(60)
        assert runs._entries[str(folder / "run5")].row(runs_module.ReadBudget(left=1000)) is not None
        assert ask(asked, "config", run="run4")["settings"]["env.kind"] == "frozen_lake"
        go_on.set()
        assert len(waiting.result(60)) == 6


def test_concurrent_lists_agree(folder: Path) -> None:
    runs = RunList(ViewedFolder(folder))
    with ThreadPoolExecutor(8) as pool:
        lists = list(pool.map(lambda _: runs.rows(), range(16)))
    assert len(lists[0]) == 6 and all(found == lists[0] for found in lists)


def test_run_list_drops_deleted_runs(folder: Path) -> None:
    runs = RunList(ViewedFolder(folder))
    assert len(runs.rows()) == 6
    for name in ("run0", "run4"):
        (folder / name).rename(folder.parent / f"{name}-gone")
    assert len(runs.rows()) == 4 and len(runs._entries) == 4


CONFIGS = {
    "written": to_toml(build({}, [("train.steps", 7), ("algo.preset", "starpo_s")])),
    "mixed": to_toml(build({}, [("env.mix.sokoban", 2)])),
    "params": to_toml(build({}, [("env.params.size", 5), ("sft.demos", "solver")])),
    "reward": to_toml(build({}, [("rollout.prefix", 'a\n[train]\nsteps = 9\nname = "x"')])),
    "by hand": '[env]\nkind = "a"\n[model]\nname="b"\n',
    "dotted": 'env.kind = "a"\nmodel.name = "b"\ntrain.steps = 3\n',
    "several lines": '[env]\nkind = """\n[model]\nname = "no"\n"""\n[env.mix]\n[model]\nname = "b"\n',
}


@pytest.mark.parametrize("name", CONFIGS)
def test_read_main_settings_equals_parsing_the_whole_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "a")
    (run / "config.toml").write_text(CONFIGS[name])
    root, parsed = ViewedFolder(tmp_path), list[int]()
    whole = parse_main_settings(read_toml(root, run, "config.toml"), root.shorten_path)
    monkeypatch.setattr(settings_module, "read_toml", lambda *given: [parsed.append(1), read_toml(*given)][1])
    assert parse_main_settings(read_main_settings(root, run), root.shorten_path) == whole
    assert bool(parsed) == (name not in ("written", "params", "reward"))


def test_linked_file_is_followed_only_within_the_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "summary.json"
    elsewhere.write_text(json.dumps(SUMMARY))
    root = ViewedFolder(folder)
    (folder / "run5/summary.json").symlink_to(elsewhere)
    (folder / "run4/summary.json").symlink_to(folder / "run0/summary.json")
    assert root.stat(folder / "run5", "summary.json") is None
    assert root.stat(folder / "run4", "summary.json") is not None
    found = listed(RunList(root))
    assert (found["run4"]["status"], found["run5"]["status"]) == ("finished", "stopped")
