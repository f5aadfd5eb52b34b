"""Ray's own processes and files on this machine: their loss, and what a killed driver leaves."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("ray")

from turnwise.cluster.local_ray import FOLDER, session_folder

TIMEOUT_S = 300.0
DRIVER = """
import json, sys, time
import ray
from turnwise.cluster.local_ray import find_targets
from turnwise.cluster.session import open_session
from turnwise.config.resources import ClusterConfig

with open_session(ClusterConfig(engines=1, cpus=1), gpus_per_engine=0, advice="Resume with: this"):
    print(json.dumps(find_targets(is_own=True)), flush=True)
    while sys.argv[1] == "wait":
        ray.put(b"x" * 1_000_000)  # Ray ends a process that does this without a raylet
        time.sleep(0.05)
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder for Ray's; its path is short, since sockets are in it."""
    folder = Path(tempfile.mkdtemp(prefix="tw", dir="/tmp"))
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start_driver(action: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, action], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_until_gone(pid: int, folder: Path) -> None:
    """Wait for the end of the raylet, and of its agents and workers, which write into the folder for a while longer."""
    end = time.monotonic() + TIMEOUT_S
    while (Path(f"/proc/{pid}").exists() or is_named(folder)) and time.monotonic() < end:
        time.sleep(0.05)


def is_named(folder: Path) -> bool:
    """Return whether a process has the folder in its command line."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if bytes(folder) in file.read_bytes():
                return True
    return False


@pytest.mark.parametrize("lost", ["raylet", "GCS"])
def test_lost_ray_is_one_line_that_says_how_to_resume(place: Path, lost: str) -> None:
    driver = start_driver("wait")
    assert driver.stdout is not None
    targets = json.loads(driver.stdout.readline())
    os.kill(int(targets[lost]), signal.SIGKILL)
    printed, errors = driver.communicate(timeout=TIMEOUT_S)
    assert driver.returncode == 1
    parts = (lost, "GCS") if lost == "raylet" else (lost,)  # the GCS ends soon after the raylet of its node
    assert errors in [f"turnwise: Ray's {part} was lost, and the run with it. Resume with: this\n" for part in parts]
    assert printed == ""
    (left,) = place.glob(f"{FOLDER}*")
    wait_until_gone(int(targets["raylet"]), left)
    with session_folder() as live, session_folder() as other:
        assert not left.exists() and Path(live).is_dir() and Path(other).is_dir()
    assert not list(place.glob(f"{FOLDER}*"))


def test_finished_session_prints_nothing_and_leaves_no_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE")  # Ray's own default, with which it prints a notice
    monkeypatch.setenv("HOME", str(place))  # where Ray writes its token
    driver = start_driver("end")
    printed, errors = driver.communicate(timeout=TIMEOUT_S)
    assert (driver.returncode, errors, len(printed.splitlines())) == (0, "", 1)
    assert not list(place.glob(f"{FOLDER}*"))
