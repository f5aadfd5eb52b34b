"""Jobs: commands that wait, run or have ended. All of them are files, so that a killed studio loses none.

    runs/.studio/jobs/000001/
        job.json      the command; written once, when the job is created
        stop          asks to stop the job; "now" in it asks for a kill
        state.json    when the command started and how it ended; written by the job's supervisor
        log.txt       what the command printed
        lock          locked while the supervisor or the command lives

Each file has one writer. `supervise.py` is the supervisor, one process per running job.
"""

import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.files.disk import wrap_disk_errors, write_atomic
from turnwise.files.file_end import read_last_text
from turnwise.studio.supervise import JOB, LOCK, LOG, STATE, STOP, STOP_NOW
from turnwise.text.truncation import shorten

GRACE_S = 300.0
"""Seconds that a job has to save a checkpoint after a request to stop."""
STOP_CODES = (129, 130, 143, -1, -2, -15)
"""Exit codes of a command that a signal stopped: as turnwise reports them, and before it could handle them."""
MAX_ERROR = 500
ERROR_BYTES = 16 << 10
"""End of the log that the error of a failed job is taken from."""
MAX_LOG = 64 << 10
"""Bytes of the log in one response."""


class JobStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"
    LOST = "lost"
    """Its processes ended without a word, as in a power cut."""

    @property
    def active(self) -> bool:
        return self in (JobStatus.RUNNING, JobStatus.STOPPING)

    @property
    def ended(self) -> bool:
        return not self.active and self is not JobStatus.WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as its files describe it at one moment."""

    number: int
    title: str
    command: tuple[str, ...]
    run: str
    """Folder of the run that the command writes; empty if it writes none."""
    created: float
    """Seconds since 1970, like the other times."""
    status: JobStatus
    started: float | None = None
    ended: float | None = None
    returncode: int | None = None
    error: str | None = None
    """Why a failed command ended: the last line that it printed."""


class JobFolder:
    """The files of one job."""

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, int(path.name)

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        title: str,
        command: Sequence[str],
        run: str,
        cwd: Path,
        grace_s: float = GRACE_S,
    ) -> "JobFolder":
        """Write a new job below `folder`, with the next free number."""
        with wrap_disk_errors(folder, "start the job again"):
            folder.mkdir(parents=True, exist_ok=True)
            number = max((int(path.name) for path in job_paths(folder)), default=0) + 1
            while True:
                path = folder / f"{number:06d}"
                try:
                    path.mkdir()
                    break
                except FileExistsError:
                    number += 1
            job = {
                "title": title,
                "command": list(command),
                "run": run,
                "cwd": str(cwd),
                "grace_s": grace_s,
                "created": time.time(),
            }
            write_atomic(path / JOB, json.dumps(job).encode())
        return cls(path)

    def read(self) -> Job | None:
        """Return the job; None for a folder that was not written completely, or is being deleted."""
        job = read_object(self.path / JOB)
        if job is None:
            return None
        status, state = self._look()
        if status in (JobStatus.LOST, JobStatus.CANCELLED):  # unless it was started between two looks at its files
            status, state = self._look()
        return Job(
            number=self.number,
            title=str(job["title"]),
            command=tuple(map(str, job["command"])),
            run=str(job["run"]),
            created=float(job["created"]),
            status=status,
            started=state.get("started"),
            ended=state.get("ended"),
            returncode=state.get("returncode"),
            error=self._explain(state) if status is JobStatus.FAILED else None,
        )

    def _explain(self, state: Mapping[str, Any]) -> str | None:
        if state["returncode"] == -signal.SIGKILL:
            return "Killed by the system: perhaps memory ran out. The last checkpoint is kept."
        return self._last_line()

    def _look(self) -> tuple[JobStatus, dict[str, Any]]:
        """Return the status and the state, which is complete once the lock is free."""
        is_locked = self.is_locked()
        state, is_stopping = read_object(self.path / STATE) or {}, self.stop_requested
        if "ended" in state:
            stopped = is_stopping or state["returncode"] in STOP_CODES
            failed = JobStatus.STOPPED if stopped else JobStatus.FAILED
            return JobStatus.FINISHED if state["returncode"] == 0 else failed, state
        if is_locked:
            return JobStatus.STOPPING if is_stopping else JobStatus.RUNNING, state
        if state:
            return JobStatus.LOST, state
        return JobStatus.CANCELLED if is_stopping else JobStatus.WAITING, state

    def is_locked(self) -> bool:
        """Return whether the supervisor or the command lives."""
        lock = self.acquire_lock(shared=True)
        if lock is None:
            return True
        os.close(lock)
        return False

    def acquire_lock(self, *, shared: bool = False) -> int | None:
        """Return a descriptor that holds the lock; None if another process holds it."""
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def request_stop(self, *, now: bool) -> None:
        """Ask to stop the job, or to cancel it while it waits. `now`: kill it without the grace time."""
        with wrap_disk_errors(self.path / STOP, "stop the job again"):
            write_atomic(self.path / STOP, STOP_NOW.encode() if now else b"")

    @property
    def stop_requested(self) -> bool:
        return (self.path / STOP).exists()

    def delete(self) -> None:
        with wrap_disk_errors(self.path, "remove the job again"):
            shutil.rmtree(self.path)

    def read_log(self, after: int) -> tuple[str, int]:
        """Return the text from byte `after` on, at most MAX_LOG bytes, and where it ends. -1: the end of the log."""
        try:
            with (self.path / LOG).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(0, size - MAX_LOG) if after < 0 else min(after, size)
                file.seek(start)
                data = file.read(MAX_LOG)
        except FileNotFoundError:
            return "", 0
        return data.decode("utf-8", "replace"), start + len(data)

    def _last_line(self) -> str | None:
        try:
            with (self.path / LOG).open("rb") as file:
                text = read_last_text(file, ERROR_BYTES)
        except OSError:
            return None
        return None if text is None else shorten(text.removeprefix("turnwise: "), MAX_ERROR)


def job_paths(folder: Path) -> list[Path]:
    """Return the folders of all jobs, the oldest first."""
    try:
        return sorted(path for path in folder.iterdir() if path.name.isdecimal())
    except FileNotFoundError:
        return []


def find_job(folder: Path, number: int) -> JobFolder:
    path = folder / f"{number:06d}"
    if not (path / JOB).is_file():
        raise UserError(f"No job {number}. Reload the list of jobs.")
    return JobFolder(path)


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None for a file that is missing or not JSON."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
