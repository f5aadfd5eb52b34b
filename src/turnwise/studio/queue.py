"""The queue of one machine: starts waiting jobs in the order in which they were added, a fixed number at a time."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self

from turnwise.core.errors import UserError
from turnwise.files.disk import FolderLock, wrap_disk_errors
from turnwise.studio.jobs import GRACE_S, Job, JobFolder, JobStatus, find_job, job_paths
from turnwise.studio.supervise import LOG, STATE, write_state

STUDIO_FOLDER = ".studio"
"""Folder of the studio in the folder of runs. The viewer skips hidden folders."""
TICK_S = 0.5
SUPERVISOR = ("-m", "turnwise.studio.supervise")
TURNWISE = (sys.executable, "-m", "turnwise")
"""Start of each job's command line, independent of the PATH."""

log = logging.getLogger(__name__)


class Queue:
    """`with Queue(runs) as queue`: jobs start while it is open. Running jobs go on after it is closed or killed.

    Thread-safe. One process at a time can have the queue of a folder.
    """

    def __init__(
        self, runs: Path, *, slots: int = 1, grace_s: float = GRACE_S, program: Sequence[str] = TURNWISE
    ) -> None:
        """`slots`: jobs that run at the same time; `program`: what runs the jobs' commands."""
        self.folder = runs / STUDIO_FOLDER / "jobs"
        self._slots, self._grace_s, self._program = slots, grace_s, tuple(program)
        self._ended: dict[int, Job] = {}
        """Jobs that cannot change any more, by number."""
        self._supervisors: list[tuple[subprocess.Popen[bytes], JobFolder]] = []
        self._closing, self._changed, self._lock = Event(), Event(), Lock()
        self._thread = Thread(target=self._run, name="studio-queue", daemon=True)
        self.problem: str | None = None
        """Why waiting jobs could not be started, until one is."""

    def __enter__(self) -> Self:
        with wrap_disk_errors(self.folder, "start the studio again"):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._owned = FolderLock(self.folder)
            except UserError:
                raise UserError(
                    f"Another studio works on {self.folder.parents[1]}. Use that one, or stop it first."
                ) from None
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closing.set()
        self._changed.set()
        self._thread.join()
        self._owned.release()

    def add(self, command: Sequence[str], *, title: str, run: Path) -> Job:
        """Add a turnwise command; `run` is the folder of the run that it writes."""
        folder = JobFolder.create(
            self.folder,
            title=title,
            command=(*self._program, *command),
            run=str(run),
            cwd=Path.cwd(),
            grace_s=self._grace_s,
        )
        self._changed.set()
        return self._read(folder)

    def jobs(self) -> list[Job]:
        """Return all jobs, the oldest first."""
        jobs = []
        for path in job_paths(self.folder):
            job = self._ended.get(int(path.name)) or JobFolder(path).read()
            if job is None:
                continue
            if job.status.ended:
                self._ended[job.number] = job
            jobs.append(job)
        return jobs

    def stop(self, number: int, *, now: bool = False) -> Job:
        """Stop a job, or cancel it if it waits; `now` kills it without a checkpoint. One that has ended stays as is."""
        folder = find_job(self.folder, number)
        if not self._read(folder).status.ended:
            folder.request_stop(now=now)
        return self._read(folder)

    def remove(self, number: int) -> None:
        """Remove a job that has ended from the list. Its run stays."""
        folder = find_job(self.folder, number)
        if not self._read(folder).status.ended:
            raise UserError(f"Job {number} has not ended. Stop it first.")
        folder.delete()
        self._ended.pop(number, None)

    def read_log(self, number: int, after: int) -> tuple[str, int]:
        return find_job(self.folder, number).read_log(after)

    def _read(self, folder: JobFolder) -> Job:
        job = folder.read()
        if job is None:
            raise UserError(f"No job {folder.number}. Reload the list of jobs.")
        return job

    def _run(self) -> None:
        """Start jobs until the queue is closed; a full disk does not end the queue."""
        while not self._closing.is_set():
            try:
                self.start_waiting()
                self.problem = None
            except (OSError, UserError) as error:
                if self.problem is None:
                    log.warning("studio: cannot start waiting jobs: %s", error)
                self.problem = " ".join(str(error).split())
            self._changed.wait(TICK_S)
            self._changed.clear()

    def start_waiting(self) -> None:
        """Start waiting jobs while fewer than the allowed number run."""
        with self._lock:
            self._reap()
            jobs = self.jobs()
            free = self._slots - sum(job.status.active for job in jobs)
            for job in [job for job in jobs if job.status is JobStatus.WAITING][: max(free, 0)]:
                self._start(find_job(self.folder, job.number))

    def _reap(self) -> None:
        """Collect supervisors that ended. One that could not even start counts as a failed job, not a waiting one."""
        for process, folder in list(self._supervisors):
            if (returncode := process.poll()) is None:
                continue
            if returncode and not (folder.path / STATE).exists():
                now = time.time()
                write_state(folder.path, {"started": now, "ended": now, "returncode": returncode})
            self._supervisors.remove((process, folder))

    def _start(self, folder: JobFolder) -> None:
        """Start the supervisor, which inherits the job's lock: there is no moment at which nobody holds it."""
        lock = folder.acquire_lock()
        if lock is None:
            return
        try:
            if folder.stop_requested:  # cancelled since the list was read
                return
            command = [sys.executable, *SUPERVISOR, str(folder.path), str(lock)]
            nowhere = subprocess.DEVNULL
            with (folder.path / LOG).open("ab") as errors:
                process = subprocess.Popen(
                    command, stdin=nowhere, stdout=nowhere, stderr=errors, pass_fds=(lock,), start_new_session=True
                )
            self._supervisors.append((process, folder))
        finally:
            os.close(lock)
