"""The list of runs: an index in memory that is updated, not rebuilt.

A run's row is made again only when one of its few small files changed, which a handful of `stat` calls tell. A finished
run is described by its summary. Of others the metrics are read, `READ_PER_LIST` bytes per list over all runs: until a
file was read to its end, its last rows say how far the run is, and the row is marked as `partial`.
"""

import fcntl
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple

from turnwise.core.errors import UserError
from turnwise.record.disk import LOCK_NAME
from turnwise.viewer.facts import RunFacts, evaluation_facts, progress_facts, run_facts
from turnwise.viewer.lines import read_row
from turnwise.viewer.progress import Progress
from turnwise.viewer.root import CONFIG, PLAN, NotThere, Root
from turnwise.viewer.rows import METRICS
from turnwise.viewer.settings import read_main_settings, read_toml

SUMMARY = "summary.json"
MAX_SUMMARY = 4 << 20
READ_PER_LIST = 4 << 20
"""Bytes of metrics that one list reads, so that it answers at once whatever the folder holds."""

Status = Literal["running", "finished", "stopped"]


class Stamp(NamedTuple):
    """Another one where a file was written to, or replaced."""

    modified_ns: int
    size: int
    inode: int


class Stamps(NamedTuple):
    """Of the files that a row is made from; None where there is none."""

    config: Stamp | None
    plan: Stamp | None
    summary: Stamp | None
    metrics: Stamp | None
    lock: Stamp | None
    trajectories: Stamp | None

    @property
    def updated(self) -> float | None:
        """When its files last changed, in seconds since 1970."""
        files = (self.metrics, self.config, self.plan, self.summary, self.trajectories)
        return max((each.modified_ns / 1e9 for each in files if each is not None), default=None)


STAMPED = (CONFIG, PLAN, SUMMARY, METRICS, LOCK_NAME, "trajectories")
"""The files, in the order of `Stamps`."""


@dataclass(slots=True)
class Allowance:
    """Bytes that a list may still read."""

    left: int


class RunList:
    """Lists may be asked for at the same time: they share the entries, of which each has a lock of its own."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._entries: dict[str, Entry] = {}
        """By their folders."""
        self._lock = Lock()
        """Guards the dictionary alone: nothing is read while it is held."""

    def rows(self) -> list[dict[str, Any]]:
        """A run that vanishes while the list is made is left out of it."""
        runs, allowance = self._root.runs(), Allowance(left=READ_PER_LIST)
        with self._lock:
            self._entries = {folder: self._entries.get(folder) or Entry(self._root, Path(folder)) for _, folder in runs}
            entries = [self._entries[folder] for _, folder in runs]
        found = [(run_id, entry.row(allowance)) for (run_id, _), entry in zip(runs, entries, strict=True)]
        return [{"id": run_id, **row} for run_id, row in found if row is not None]


class Entry:
    """A run's or an evaluation's row, and what it was made from."""

    def __init__(self, root: Root, folder: Path) -> None:
        self._root, self._folder, self._lock = root, folder, Lock()
        self._stamps: Stamps | None = None
        self._row: dict[str, Any] = {}
        self._facts = RunFacts()
        self._plan: dict[str, Any] = {}
        self._broken_plan = 0
        self._summary: dict[str, Any] = {}
        self._progress: Progress | None = None
        self._tail: Progress | None = None
        self._unlocked: Stamp | None = None
        """The lock file that was found unlocked: whoever takes the lock writes to it."""

    def row(self, allowance: Allowance) -> dict[str, Any] | None:
        """None where the run is gone."""
        with self._lock:
            try:
                return self._updated(allowance)
            except (NotThere, OSError):
                self._stamps = None
                return None

    def _updated(self, allowance: Allowance) -> dict[str, Any]:
        stamps = self._read_stamps()
        if stamps != self._stamps:
            self._read_small_files(stamps)
        elif self._row["status"] != "running" and not self._row.get("partial"):
            return self._row
        own = self._evaluation(stamps) if stamps.plan is not None else self._run(stamps, allowance)
        self._stamps = stamps
        self._row = {**own, "updated": stamps.updated}
        return self._row

    def _read_stamps(self) -> Stamps:
        found = (self._root.stat(self._folder, name) for name in STAMPED)
        return Stamps(*(each and Stamp(each.st_mtime_ns, each.st_size, each.st_ino) for each in found))

    def _read_small_files(self, stamps: Stamps) -> None:
        before = self._stamps
        if before is None or stamps.config != before.config:
            self._facts = self._read_facts() if stamps.plan is None else RunFacts()
        if stamps.plan is not None and (before is None or stamps.plan != before.plan):
            self._plan, self._broken_plan = self._read_plan()
        if before is None or stamps.summary != before.summary:
            self._summary = self._read_summary() if stamps.summary is not None else {}

    def _run(self, stamps: Stamps, allowance: Allowance) -> dict[str, Any]:
        facts, status = self._facts, self._status(stamps)
        known = progress_facts(self._summary) if status == "finished" and _ended_after_metrics(stamps) else None
        partial = False
        if known is None:
            progress = self._read_progress(stamps, allowance)
            partial = self._progress is not progress
            known = {
                "step": progress.step,
                **progress.success(),
                "wall_s": progress.wall_s,
                "tokens": progress.tokens,
                "broken": progress.broken,
                "imitates": progress.imitates,
            }
        imitates = facts.imitates or known.pop("imitates")
        steps = self._summary.get("steps") if imitates else facts.steps
        return {
            "kind": "sft" if imitates else "run",
            "environment": facts.environment,
            "model": facts.model,
            "algorithm": "sft" if imitates else facts.algorithm,
            "status": status,
            "steps": steps if isinstance(steps, int) else None,
            **known,
            "broken": known["broken"] + facts.broken,
            **({"partial": True} if partial else {}),
        }

    def _evaluation(self, stamps: Stamps) -> dict[str, Any]:
        own = evaluation_facts(self._plan, self._summary)
        return {"kind": "evaluation", **own, "status": self._status(stamps), "broken": self._broken_plan}

    def _read_progress(self, stamps: Stamps, allowance: Allowance) -> Progress:
        """The progress from all metrics, or from the last rows while they are not all read."""
        self._progress = self._progress or Progress(self._root, self._folder)
        before = None if self._stamps is None else self._stamps.metrics
        due = stamps.metrics != before or not self._progress.caught_up
        if due and (allowance.left > 0 or stamps.metrics is None):
            allowance.left -= self._progress.refresh(allowance.left)
            due = not self._progress.caught_up
        if not due:
            self._tail = None
            return self._progress
        if self._tail is None or stamps.metrics != before:
            self._tail = Progress(self._root, self._folder)
            self._tail.read_tail()
        return self._tail

    def _read_facts(self) -> RunFacts:
        try:
            return run_facts(read_main_settings(self._root, self._folder))
        except NotThere:
            raise
        except UserError:
            return RunFacts(broken=1)

    def _read_plan(self) -> tuple[dict[str, Any], int]:
        try:
            return read_toml(self._root, self._folder, PLAN), 0
        except NotThere:
            raise
        except UserError:
            return {}, 1

    def _read_summary(self) -> dict[str, Any]:
        try:
            return read_row(self._root.read(self._folder, SUMMARY, limit=MAX_SUMMARY)) or {}
        except UserError:
            return {}

    def _status(self, stamps: Stamps) -> Status:
        """Finished: there is a summary that says so, and nobody began to write after it."""
        finished = bool(self._summary) and self._summary.get("finished") is not False
        if finished and not _newer(stamps.lock, stamps.summary):
            return "finished"
        if self._locked(stamps.lock):
            return "running"
        return "finished" if finished else "stopped"

    def _locked(self, lock: Stamp | None) -> bool:
        """Whether a process writes here.

        The only way to ask is to take a shared lock for a moment; so it is asked only where there is no other answer.
        """
        if lock is None or lock == self._unlocked:
            return False
        try:
            with self._root.open(self._folder, LOCK_NAME) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (NotThere, OSError):
            return False
        self._unlocked = lock
        return False


def _newer(one: Stamp | None, other: Stamp | None) -> bool:
    return one is not None and (other is None or one.modified_ns > other.modified_ns)


def _ended_after_metrics(stamps: Stamps) -> bool:
    return stamps.metrics is not None and not _newer(stamps.metrics, stamps.summary)
