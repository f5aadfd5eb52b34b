"""A driver with a Ray cluster of its own is stopped: none of its processes stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from work_for_tests import wait_until

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
STUCK = [str(Path(__file__).parent / "stuck_driver_for_tests.py")]
TRAIN = [
    *("-m", "turnwise", "train", "frozen_lake", "--cluster.engines", "1", "--cluster.learners", "1"),
    *("--cluster.env_workers", "1"),
    *("--model.warmup_steps", "1", "--train.steps", "1000", "--eval.episodes", "2", "--rollout.groups", "2"),
    *("--rollout.group_size", "2", "--train.mini_batch", "4", "--record.folder", ".", "--record.name", "run"),
]
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
SOAK_CASES = [*((TRAIN, "2/1000", number) for number in SIGNALS), (STUCK, "stuck", signal.SIGINT)]
LATE = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
"""If Ray's scheduler was killed, these two try for 60 s to report it; only the soak waits for that."""


def processes(session: int) -> list[str]:
    """Return the commands of the processes in a session: the driver, Ray's daemons and actors."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(folder.name)) == session:
                found.append((folder / "cmdline").read_text().replace("\0", " ").strip())
        except OSError:  # it ended meanwhile
            continue
    return [command for command in found if command]  # a zombie has none


@pytest.mark.parametrize(("driver", "shown", "number"), [(STUCK, "stuck", signal.SIGKILL)] if SOAK == 1 else SOAK_CASES)
def test_stopped_driver_leaves_no_process(
    tmp_path: Path, driver: list[str], shown: str, number: signal.Signals
) -> None:
    pytest.importorskip("ray")
    output = tmp_path / "output"
    running = subprocess.Popen(
        [sys.executable, *driver],
        cwd=tmp_path,
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
        stdout=output.open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )

    def shows() -> bool:
        assert running.poll() is None, output.read_text()
        return shown in output.read_text()

    def left() -> set[str]:
        return set(processes(running.pid)) - (LATE if SOAK == 1 else set())

    try:
        assert wait_until(shows, 300)
        assert any("raylet" in each for each in left())
        os.killpg(running.pid, number) if number is signal.SIGINT else running.send_signal(number)
        running.wait(300)
        assert wait_until(lambda: not left(), 300), left()
    finally:
        running.kill()
