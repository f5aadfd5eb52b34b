"""The list of runs: rows in memory that are updated when files change, not rebuilt.

A row is rebuilt only if one of the run's few small files changed, which a handful of `stat` calls detect. A finished
run is described by its summary. For other runs the metrics are read, at most `READ_PER_LIST` bytes per request over all
runs. Until a run's metrics are read completely, its row is based on the last lines and marked as `partial`.
"""

import fcntl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple

from turnwise.core.errors import UserError
from turnwise.files.disk import LOCK_NAME
from turnwise.files.run_folders import CONFIG_FILE, EVALUATION_FILE, METRICS_FILE
from turnwise.record.steps import finite_number
from turnwise.viewer.json_io import read_row
from turnwise.viewer.metrics import RunProgress
from turnwise.viewer.settings import get_setting, read_main_settings, read_toml
from turnwise.viewer.viewed_folder import FileNotServed, ViewedFolder

SUMMARY = "summary.json"
MAX_SUMMARY = 4 << 20
READ_PER_LIST = 2 << 20
"""Bytes of metrics that one request reads, so that it responds quickly for any folder."""

Status = Literal["running", "finished", "stopped"]


class FileStamp(NamedTuple):
    """Changes when the file is written to or replaced."""

    modified_ns: int
    size: int
    inode: int


class RunStamps(NamedTuple):
    """Stamps of the files that a row is built from; None for a missing file."""

    config: FileStamp | None
    plan: FileStamp | None
    summary: FileStamp | None
    metrics: FileStamp | None
    lock: FileStamp | None
    trajectories: FileStamp | None

    @property
    def updated(self) -> float | None:
        """Time of the last change, in seconds since 1970."""
        files = (self.metrics, self.config, self.plan, self.summary, self.trajectories)
        return max((stamp.modified_ns / 1e9 for stamp in files if stamp is not None), default=None)


STAMPED_FILES = (CONFIG_FILE, EVALUATION_FILE, SUMMARY, METRICS_FILE, LOCK_NAME, "trajectories")
"""File names in the order of `RunStamps`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MainSettings:
    """The settings in a run's row; None for what `config.toml` lacks."""

    environment: str | None = None
    model: str | None = None
    algorithm: str | None = None
    steps: int | None = None
    is_sft: bool = False
    broken: int = 0
    """1 if the file cannot be read; the run is listed all the same."""


@dataclass(slots=True)
class ReadBudget:
    """Bytes of metrics that a request may still read."""

    left: int


class RunList:
    """Thread-safe. Concurrent requests share the entries, each of which has its own lock."""

    def __init__(self, root: ViewedFolder) -> None:
        self._root = root
        self._entries: dict[str, RunEntry] = {}
        """By folder."""
        self._lock = Lock()
        """Guards only the dictionary; no file is read while it is held."""

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per run. Runs that are deleted meanwhile are left out."""
        runs, budget = self._root.list_runs(), ReadBudget(left=READ_PER_LIST)
        with self._lock:
            self._entries = {
                folder: self._entries.get(folder) or RunEntry(self._root, Path(folder)) for _, folder in runs
            }
            entries = [self._entries[folder] for _, folder in runs]
        rows = [(run_id, entry.row(budget)) for (run_id, _), entry in zip(runs, entries, strict=True)]
        return [{"id": run_id, **row} for run_id, row in rows if row is not None]

    def row(self, run_id: str) -> dict[str, Any]:
        """Return the row of one run, without looking at the others. Raises FileNotServed if the run does not exist."""
        folder = self._root.find_run(run_id)
        with self._lock:
            entry = self._entries.setdefault(str(folder), RunEntry(self._root, folder))
        return {"id": run_id, **(entry.row(ReadBudget(left=READ_PER_LIST)) or {})}


class RunEntry:
    """The row of a run or evaluation, and the file contents that it was built from."""

    def __init__(self, root: ViewedFolder, folder: Path) -> None:
        self._root, self._folder, self._lock = root, folder, Lock()
        self._stamps: RunStamps | None = None
        self._row: dict[str, Any] = {}
        self._settings = MainSettings()
        self._plan: dict[str, Any] = {}
        self._broken_plan = 0
        self._summary: dict[str, Any] = {}
        self._progress: RunProgress | None = None
        self._tail: RunProgress | None = None
        self._unlocked: FileStamp | None = None
        """Stamp of the lock file when it was found unlocked; taking the lock writes to the file."""

    def row(self, budget: ReadBudget) -> dict[str, Any] | None:
        """Return the current row, or None if the run was deleted."""
        with self._lock:
            try:
                return self._update(budget)
            except (FileNotServed, OSError):
                self._stamps = None
                return None

    def _update(self, budget: ReadBudget) -> dict[str, Any]:
        stamps = self._read_stamps()
        if stamps != self._stamps:
            self._read_small_files(stamps)
        elif self._row["status"] != "running" and not self._row.get("partial"):
            return self._row
        row = self._evaluation_row(stamps) if stamps.plan is not None else self._run_row(stamps, budget)
        self._stamps = stamps
        self._row = {**row, "updated": stamps.updated}
        return self._row

    def _read_stamps(self) -> RunStamps:
        statuses = (self._root.stat(self._folder, name) for name in STAMPED_FILES)
        return RunStamps(
            *(status and FileStamp(status.st_mtime_ns, status.st_size, status.st_ino) for status in statuses)
        )

    def _read_small_files(self, stamps: RunStamps) -> None:
        before = self._stamps
        if before is None or stamps.config != before.config:
            self._settings = self._read_settings() if stamps.plan is None else MainSettings()
        if stamps.plan is not None and (before is None or stamps.plan != before.plan):
            self._plan, self._broken_plan = self._read_plan()
        if before is None or stamps.summary != before.summary:
            self._summary = read_summary(self._root, self._folder) if stamps.summary is not None else {}

    def _run_row(self, stamps: RunStamps, budget: ReadBudget) -> dict[str, Any]:
        settings, status = self._settings, self._status(stamps)
        result = summarized_progress(self._summary) if status == "finished" and _ended_after_metrics(stamps) else None
        is_partial = False
        if result is None:
            progress = self._read_progress(stamps, budget)
            is_partial = self._progress is not progress
            result = {
                "step": progress.step,
                **progress.success(),
                "wall_s": progress.wall_s,
                "tokens": progress.tokens,
                "broken": progress.broken,
                "is_sft": progress.is_sft,
            }
        is_sft = settings.is_sft or result.pop("is_sft")
        steps = self._summary.get("steps") if is_sft else settings.steps
        return {
            "kind": "sft" if is_sft else "run",
            "environment": settings.environment,
            "model": settings.model,
            "algorithm": "sft" if is_sft else settings.algorithm,
            "status": status,
            "steps": steps if isinstance(steps, int) else None,
            **result,
            "broken": result["broken"] + settings.broken,
            **({"partial": True} if is_partial else {}),
        }

    def _evaluation_row(self, stamps: RunStamps) -> dict[str, Any]:
        results = evaluation_results(self._plan, self._summary, self._root.shorten_path)
        return {"kind": "evaluation", **results, "status": self._status(stamps), "broken": self._broken_plan}

    def _read_progress(self, stamps: RunStamps, budget: ReadBudget) -> RunProgress:
        """Return the progress over all metrics, or over the last lines until all are read."""
        self._progress = self._progress or RunProgress(self._root, self._folder)
        before = None if self._stamps is None else self._stamps.metrics
        is_outdated = stamps.metrics != before or not self._progress.caught_up
        if is_outdated and (budget.left > 0 or stamps.metrics is None):
            budget.left -= self._progress.refresh(budget.left)
            is_outdated = not self._progress.caught_up
        if not is_outdated:
            self._tail = None
            return self._progress
        if self._tail is None or stamps.metrics != before:
            self._tail = RunProgress(self._root, self._folder)
            self._tail.read_tail()
        return self._tail

    def _read_settings(self) -> MainSettings:
        try:
            return parse_main_settings(read_main_settings(self._root, self._folder), self._root.shorten_path)
        except FileNotServed:
            raise
        except UserError:
            return MainSettings(broken=1)

    def _read_plan(self) -> tuple[dict[str, Any], int]:
        """Return an evaluation's plan and 0; for an unreadable file, an empty plan and 1."""
        try:
            return read_toml(self._root, self._folder, EVALUATION_FILE), 0
        except FileNotServed:
            raise
        except UserError:
            return {}, 1

    def _status(self, stamps: RunStamps) -> Status:
        """A run is finished if its summary says so and no process locked the folder later."""
        finished = bool(self._summary) and self._summary.get("finished") is not False
        if finished and not _is_newer(stamps.lock, stamps.summary):
            return "finished"
        if self._is_locked(stamps.lock):
            return "running"
        return "finished" if finished else "stopped"

    def _is_locked(self, lock: FileStamp | None) -> bool:
        """Return whether a process writes to the run.

        The only way to find out is to take a shared lock for a moment, so this is done only if nothing else decides.
        """
        if lock is None or lock == self._unlocked:
            return False
        try:
            with self._root.open(self._folder, LOCK_NAME) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (FileNotServed, OSError):
            return False
        self._unlocked = lock
        return False


def read_summary(root: ViewedFolder, folder: Path) -> dict[str, Any]:
    """Return the contents of `summary.json`; nothing if the file is missing or broken."""
    try:
        return read_row(root.read(folder, SUMMARY, limit=MAX_SUMMARY)) or {}
    except UserError:
        return {}


def _is_newer(one: FileStamp | None, other: FileStamp | None) -> bool:
    return one is not None and (other is None or one.modified_ns > other.modified_ns)


def _ended_after_metrics(stamps: RunStamps) -> bool:
    return stamps.metrics is not None and not _is_newer(stamps.metrics, stamps.summary)


def parse_main_settings(config: Mapping[str, Any], shorten: Callable[[str], str]) -> MainSettings:
    """Join the names of mixed environments. The algorithm is the published method if the run names one."""
    mix, steps = get_setting(config, "env", "mix"), get_setting(config, "train", "steps")
    names = [_text_or_none(get_setting(config, "env", "kind")), *(mix if isinstance(mix, dict) else ())]
    method = get_setting(config, "algo", "preset")
    advantage = get_setting(config, "algo", "advantage", "kind") or get_setting(config, "algo", "advantage")
    return MainSettings(
        environment=" + ".join(shorten(name) for name in names if name) or None,
        model=_map_text(get_setting(config, "model", "name"), shorten),
        algorithm=_text_or_none(method) or _text_or_none(advantage),
        steps=steps if isinstance(steps, int) else None,
        is_sft=get_setting(config, "sft", "demos") is not None,
    )


def evaluation_results(
    plan: Mapping[str, Any], summary: Mapping[str, Any], shorten: Callable[[str], str]
) -> dict[str, Any]:
    """Return the cells of an evaluation's row: the first model's success, and episodes as steps.

    Most of them are in the summary, which is written at the end.
    """
    models = [table for table in _list(summary, "models") or _list(plan, "models") if isinstance(table, dict)]
    first = models[0] if models else {}
    episodes = [model["episodes"] for model in models if isinstance(model.get("episodes"), int)]
    tokens = [model["episodes"] * model["sampled_tokens"] for model in models if _has_token_count(model)]
    tasks, tries = summary.get("tasks"), summary.get("tries")
    return {
        "environment": _map_text(plan.get("environment"), shorten),
        "model": _map_text(first.get("label"), shorten),
        "algorithm": None,
        "step": sum(episodes) if episodes else None,
        "steps": tasks * tries * len(models) if isinstance(tasks, int) and isinstance(tries, int) else None,
        **{name: _number_or_none(first.get(name)) for name in ("success", "success_low", "success_high")},
        "wall_s": None,
        "tokens": round(sum(tokens)) if tokens else None,
        "models": [_map_text(model.get("label"), shorten) for model in models],
    }


def summarized_progress(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the progress of a finished run from its summary; None if the summary lacks a part of it."""
    interval = summary.get("interval")
    low, high = interval if isinstance(interval, list) and len(interval) == 2 else (None, None)
    progress = {
        "step": summary.get("steps"),
        "success": summary.get("success_after"),
        "success_low": low,
        "success_high": high,
        "wall_s": summary.get("wall_s"),
        "tokens": summary.get("tokens", summary.get("answer_tokens")),
    }
    if any(finite_number(value) is None for value in progress.values()) or not isinstance(progress["step"], int):
        return None
    return {**progress, "broken": 0, "is_sft": "answer_tokens" in summary}


def _has_token_count(model: Mapping[str, Any]) -> bool:
    return isinstance(model.get("episodes"), int) and isinstance(model.get("sampled_tokens"), float)


def _list(table: Mapping[str, Any], name: str) -> list[Any]:
    value = table.get(name)
    return value if isinstance(value, list) else []


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _map_text(value: object, function: Callable[[str], str]) -> str | None:
    return function(value) if isinstance(value, str) else None


def _number_or_none(value: object) -> float | None:
    return value if isinstance(value, int | float) else None
