"""The guard of Ray's processes, and the folders that a killed driver leaves, without Ray itself."""

import errno
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

from processes_for_tests import start_process
from turnwise.cluster import local_ray, ray_guard
from turnwise.cluster.local_ray import FOLDER, session_folder
from turnwise.sandbox import scratch_folders

TIMEOUT_S = 60.0


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder for Ray's, with a short path."""
    folder = Path(tempfile.mkdtemp(prefix="tw", dir="/tmp"))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def hold_session_folder(parent: Path) -> None:
    os.environ["RAY_TMPDIR"] = str(parent)
    with session_folder() as folder:
        Path(folder, "held").touch()
        time.sleep(600)


def test_next_start_removes_session_folders_of_killed_drivers(place: Path) -> None:
    process = start_process(hold_session_folder, place)
    try:
        while not (held := list(place.glob(f"{FOLDER}*/held"))):
            assert process.is_alive()
            time.sleep(0.02)
        with session_folder() as own:
            assert held[0].exists(), "its driver is alive"
            process.kill()
            process.join()
            with session_folder():
                assert not held[0].parent.exists() and Path(own).is_dir()
    finally:
        process.kill()
        process.join()
    assert not list(place.iterdir())


def test_session_folder_is_in_a_short_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(place / "with-a-long-name"))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with session_folder() as folder:
        assert Path(folder).parent == place


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def watch_while(action: str, sleeper: "subprocess.Popen[bytes]", target: str) -> str | None:
    """Run the guard with a process that ends at the action as its driver or its target."""
    with subprocess.Popen(["sleep", "600"]) as other:
        driver, watched = (other, sleeper) if action == "driver ends" else (sleeper, other)
        other.send_signal(signal.SIGKILL)
        found = ray_guard.watch(driver.pid, {"raylet": target or str(watched.pid)})
        other.wait()
    return found


def test_guard_reports_the_process_that_ended(sleeper: "subprocess.Popen[bytes]") -> None:
    assert watch_while("target ends", sleeper, "") == "raylet"
    assert watch_while("driver ends", sleeper, "") is None


def test_guard_reports_an_address_that_stays_silent(
    sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_guard, "POLL_MS", 10)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert watch_while("driver ends", sleeper, address) is None, "the cluster outlives a driver"
    assert watch_while("driver ends", sleeper, address) == "raylet", "Ray ended the driver"
    asked: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(ray_guard.time, "monotonic", lambda: asked.append(0.0) or 10.0 * len(asked))
        assert ray_guard.watch(sleeper.pid, {"GCS": address}) == "GCS"
    assert len(asked) == 5, "a GCS that is restarted within PATIENCE_S is not lost"


def test_guard_of_an_ended_driver_ends(sleeper: "subprocess.Popen[bytes]") -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert ray_guard.watch(ended.pid, {"raylet": str(sleeper.pid)}) is None


def test_process_that_ended_before_the_guard_started_is_lost() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    targets = {"GCS": str(ended.pid), "raylet": str(os.getpid())}
    assert ray_guard.watch(os.getpid(), targets) == "GCS"


def test_files_that_are_written_during_the_removal_are_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (left := place / f"{FOLDER}x").mkdir()
    calls, remove = [], scratch_folders.remove_tree

    def write(top: str) -> None:
        calls.append(top)
        if len(calls) < 3:
            raise OSError(errno.ENOTEMPTY, "not empty")
        remove(top)

    monkeypatch.setattr(scratch_folders, "remove_tree", write)
    with session_folder():
        assert not left.exists() and len(calls) == 3


def test_slow_start_of_ray_is_repeated() -> None:
    slow = "The current node timed out during startup. This could happen because the GCS has become overloaded."
    errors = [Exception(slow), Exception(slow)]

    def start() -> str:
        if errors:
            raise errors.pop()
        return "started"

    assert local_ray.retry_start(start) == "started"
    assert not errors
    errors += [ValueError("no room"), Exception(slow)]
    with pytest.raises(ValueError, match="no room"):
        local_ray.retry_start(start)
    errors += [Exception(slow)] * local_ray.STARTS
    with pytest.raises(Exception, match="timed out during startup"):
        local_ray.retry_start(start)


def test_slow_start_of_ray_ends_its_processes(tmp_path: Path) -> None:
    raylet = tmp_path / "raylet"
    shutil.copy("/bin/sleep", raylet)
    started: list[subprocess.Popen[bytes]] = [subprocess.Popen([raylet, "600"])]

    def start() -> int:
        started.append(subprocess.Popen([raylet, "600"]))
        while local_ray._read(Path(f"/proc/{started[-1].pid}/comm")).strip() != "raylet":
            time.sleep(0.01)
        if len(started) < 3:
            raise Exception(local_ray.SLOW_START)
        return started[-1].pid

    try:
        last = local_ray.retry_start(start)
        end = time.monotonic() + TIMEOUT_S
        while "\nState:\tZ" not in local_ray._read(Path(f"/proc/{started[1].pid}/status")) and time.monotonic() < end:
            time.sleep(0.01)
        assert started[1].pid not in local_ray._find_children(), "it has ended"
        assert started[1].wait(TIMEOUT_S) == -signal.SIGKILL
        assert started[0].poll() is None and started[2].poll() is None, "only those of the slow start"
        assert local_ray._find_children()[last] == "raylet", "another test may have one too"
    finally:
        for each in started:
            each.kill()
            each.wait()


def test_guard_blames_the_raylet_if_the_gcs_has_ended_too() -> None:
    """A lost raylet takes the driver and with it the GCS, maybe before the guard runs again."""
    targets = {name: subprocess.Popen(["sleep", "600"]) for name in ("GCS", "raylet")}
    for process in targets.values():
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays as a zombie, which has a descriptor
    assert ray_guard.watch(os.getpid(), {name: str(process.pid) for name, process in targets.items()}) == "raylet"
    for process in targets.values():
        process.wait()
