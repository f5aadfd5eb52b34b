"""Run the command of a job, and record how it ended. Outlives the studio that started it.

    python -m turnwise.studio.supervise JOB LOCK

JOB is the job's folder (`jobs.py` describes its files). LOCK is the number of an inherited descriptor that holds the
job's lock: the command inherits it too, so that the lock is free only when both have ended.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from turnwise.files.disk import append_bytes, write_atomic

JOB, STOP, STATE, LOG, LOCK = "job.json", "stop", "state.json", "log.txt", "lock"
STOP_NOW = "now"
"""Contents of the file STOP that ask for a kill without the grace time."""
CANNOT_START = 127
"""Exit code of a command that could not be started, as in a shell."""
POLL_S = 0.2


def supervise(folder: Path, lock: int) -> None:
    """Run the command. STATE says when it was started, and then how it ended."""
    state: dict[str, Any] = {"started": time.time()}
    write_state(folder, state)  # first: a job with a state is never started again
    try:
        returncode = run_command(folder, lock)
    except (OSError, ValueError, KeyError, TypeError) as error:  # of a missing program or folder, or a damaged JOB
        append_bytes(folder / LOG, f"Cannot start the command: {error!r}\n".encode())
        returncode = CANNOT_START
    write_state(folder, state | {"ended": time.time(), "returncode": returncode})


def run_command(folder: Path, lock: int) -> int:
    """Start the command, pass on requests to stop it, and return its exit code; that of a signal is negative."""
    job = json.loads((folder / JOB).read_bytes())
    stop = StopRequests(folder / STOP)
    with (folder / LOG).open("ab") as log:
        process = subprocess.Popen(
            job["command"],
            cwd=job["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    return wait_or_stop(process, stop, job["grace_s"])


class StopRequests:
    """Requests to stop the command: the file STOP, or a signal that ends this process, as when a machine shuts down."""

    def __init__(self, file: Path) -> None:
        self._file, self._signalled = file, False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True

    @property
    def requested(self) -> bool:
        return self._signalled or self._file.exists()

    @property
    def now(self) -> bool:
        try:
            return self._file.read_text().strip() == STOP_NOW
        except OSError:
            return False


def wait_or_stop(process: "subprocess.Popen[bytes]", stop: StopRequests, grace_s: float) -> int:
    """Wait for the end. A request to stop is a SIGINT, at which a run saves a checkpoint, and SIGKILL after `grace_s`.

    SIGKILL ends all processes of the command's session.
    """
    deadline: float | None = None
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S)
        if deadline is None and stop.requested:
            deadline = time.monotonic() + grace_s
            process.send_signal(signal.SIGINT)
        if stop.now or (deadline is not None and time.monotonic() > deadline):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return process.wait()


def write_state(folder: Path, state: dict[str, Any]) -> None:
    write_atomic(folder / STATE, json.dumps(state).encode())


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), int(sys.argv[2]))
