"""Watching a run from another terminal: its files are read as they grow, and the run is not touched."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from turnwise.core.errors import UserError
from turnwise.record.follow import Follower
from turnwise.record.known_metrics import FIRST
from turnwise.report.run import flat_settings
from turnwise.report.watching.frame import Frame

INTERVAL_S = 1.0
KEPT = frozenset(
    {
        "step",
        "eval/name",
        "eval/success",
        "eval/success_low",
        "eval/success_high",
        "time/total_s",
        *(metric.key for metric in FIRST),
    }
)
"""What is remembered of a row: a long run has many, and each has a hundred numbers."""


class Watched:
    """A run's rows and alarms so far; `look` takes in what is new."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "config.toml").is_file():
            raise UserError(f"{folder} is no run folder (it has no config.toml): give the path of a run, as runs/NAME")
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self.alarms: list[dict[str, Any]] = []
        self._metrics = Follower(folder / "metrics.jsonl")
        self._told = Follower(folder / "alarms.jsonl")
        steps = flat_settings(folder / "config.toml").get("train.steps", "")
        self._steps = int(steps) if steps.isdecimal() else None

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").exists()

    def look(self) -> bool:
        """Whether anything is new."""
        fresh, told = self._metrics.poll(), self._told.poll()
        if fresh.reset:
            self.rows.clear()
        if told.reset:
            self.alarms.clear()
        self.rows += [{key: row[key] for key in row.keys() & KEPT} for row in fresh.rows if _has_step(row)]
        self.alarms += told.rows
        return bool(fresh.rows or told.rows or fresh.reset or told.reset)

    def frame(self, *, live: bool) -> Frame:
        return Frame(
            title=self.folder.resolve().name,
            rows=self.rows,
            alarms=self.alarms,
            total=None if self._imitates() else self._steps,
            finished=self.finished,
            quiet_s=self._quiet_s(),
            live=live,
        )

    def _imitates(self) -> bool:
        """Imitation has as many steps as its demonstrations make: not what `train.steps` says."""
        return any("train/loss" in row for row in self.rows[-3:])

    def _quiet_s(self) -> float | None:
        with suppress(OSError):
            return max(time.time() - (self.folder / "metrics.jsonl").stat().st_mtime, 0.0)
        return None


def watch(folder: Path, console: Console, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Until the run is finished or Ctrl-C. What has ended, or has no terminal to be redrawn on, is shown once."""
    watched = Watched(folder)
    watched.look()
    if console.is_interactive and not watched.finished:
        with suppress(KeyboardInterrupt):
            _follow(watched, console, sleep)
    console.print(watched.frame(live=False))


def _follow(watched: Watched, console: Console, sleep: Callable[[float], None]) -> None:
    """On a screen of its own, which gives the terminal back as it was."""
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while not watched.finished:
            live.update(watched.frame(live=True), refresh=True)
            sleep(INTERVAL_S)
            watched.look()
    watched.look()


def _has_step(row: dict[str, Any]) -> bool:
    return isinstance(row.get("step"), int)
