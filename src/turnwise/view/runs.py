"""The list of runs: a row each, from small files and one pass over the metrics."""

import fcntl
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from turnwise.core.errors import UserError
from turnwise.record.lock import LOCK_NAME
from turnwise.view.facts import RunFacts, evaluation_facts, run_facts
from turnwise.view.lines import read_row
from turnwise.view.progress import MISSING, Progress
from turnwise.view.root import CONFIG, PLAN, NotThere, Root
from turnwise.view.settings import is_evaluation, read_toml

SUMMARY = "summary.json"
MAX_SUMMARY = 4 << 20
MAX_KEPT = 5000

Status = Literal["running", "finished", "stopped"]


class RunList:
    """Remembers how far each run's metrics were read: a list that is asked for again costs what is new."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._progress: dict[Path, Progress] = {}
        self._facts: dict[Path, tuple[tuple[int, int, int] | None, RunFacts]] = {}
        self._lock = Lock()

    def rows(self) -> list[dict[str, Any]]:
        """A run that vanishes while the list is made is left out of it."""
        with self._lock:
            found = [self._row(run_id) for run_id in self._root.run_ids()]
        return [row for row in found if row is not None]

    def _row(self, run_id: str) -> dict[str, Any] | None:
        try:
            folder = self._root.run(run_id)
            own = self._evaluation(folder) if is_evaluation(folder) else self._run(folder)
        except (NotThere, OSError):
            return None
        return {"id": run_id, **own, "updated": updated(folder)}

    def _run(self, folder: Path) -> dict[str, Any]:
        facts, progress, summary = self._facts_of(folder), self._progress_of(folder), self._summary(folder)
        imitates = facts.imitates or progress.imitates
        steps = summary.get("steps") if imitates else facts.steps
        return {
            "kind": "sft" if imitates else "run",
            "environment": facts.environment,
            "model": facts.model,
            "algorithm": "sft" if imitates else facts.algorithm,
            "status": self._status(folder, summary),
            "step": progress.step,
            "steps": steps if isinstance(steps, int) else None,
            **progress.success(),
            "wall_s": progress.wall_s,
            "tokens": progress.tokens,
            "broken": progress.broken + facts.broken,
        }

    def _evaluation(self, folder: Path) -> dict[str, Any]:
        summary, broken = self._summary(folder), 0
        try:
            plan = read_toml(self._root, folder, PLAN)
        except NotThere:
            raise
        except UserError:
            plan, broken = {}, 1
        own = evaluation_facts(plan, summary)
        return {"kind": "evaluation", **own, "status": self._status(folder, summary), "broken": broken}

    def _facts_of(self, folder: Path) -> RunFacts:
        """Settings are parsed once: it takes longer than all else."""
        stamp = stamp_of(folder / CONFIG)
        found, facts = self._facts.get(folder, (None, RunFacts()))
        if found != stamp:
            try:
                facts = run_facts(read_toml(self._root, folder, CONFIG))
            except NotThere:
                raise
            except UserError:
                facts = RunFacts(broken=1)
            self._facts[folder] = stamp, facts
        return facts

    def _summary(self, folder: Path) -> dict[str, Any]:
        try:
            return read_row(self._root.read(folder, SUMMARY, limit=MAX_SUMMARY)) or {}
        except UserError:
            return {}

    def _progress_of(self, folder: Path) -> Progress:
        if len(self._progress) >= MAX_KEPT and folder not in self._progress:
            self._progress.clear()
            self._facts.clear()
        progress = self._progress.setdefault(folder, Progress(self._root, folder))
        progress.refresh()
        return progress

    def _status(self, folder: Path, summary: dict[str, Any]) -> Status:
        """Finished: there is a summary that says so, and nobody began to write after it."""
        finished = bool(summary) and summary.get("finished") is not False
        if finished and modified(folder / SUMMARY) >= modified(folder / LOCK_NAME):
            return "finished"
        if self._locked(folder):
            return "running"
        return "finished" if finished else "stopped"

    def _locked(self, folder: Path) -> bool:
        """Whether a process writes here.

        The only way to ask is to take a shared lock for a moment; so it is asked only where there is no other answer.
        """
        try:
            with self._root.open(folder, LOCK_NAME) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (NotThere, OSError):
            return False
        return False


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Another one where a file was written anew."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return MISSING


def updated(folder: Path) -> float | None:
    """When its files last changed, in seconds since 1970."""
    latest = max(modified(folder / name) for name in ("metrics.jsonl", CONFIG, PLAN, SUMMARY, "trajectories"))
    return None if latest == MISSING else latest
