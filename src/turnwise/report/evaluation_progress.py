"""How far an evaluation is: a redrawn line on a terminal, a plain line now and then elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from turnwise.report.formatting import format_duration, format_percent
from turnwise.report.terminal import sanitize_line

LIVE_INTERVAL_S, LINE_INTERVAL_S = 0.2, 10.0


class EvaluationProgress:
    """`with EvaluationProgress(console, "tiny", total=256) as progress:` then `add_episode` after each episode.

    There is no thread: it is redrawn from these calls, and an exception in the block gives the terminal back.
    """

    def __init__(
        self,
        console: Console,
        label: str,
        *,
        total: int,
        done: int = 0,
        solved: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`done`, `solved`: what an earlier sitting did, which the pace does not count."""
        self._console, self._label, self._clock = console, label, clock
        self._total, self._done, self._solved = total, done, solved
        self._before, self._began, self._drawn = done, clock(), clock()
        self._phase = ""
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_interactive else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._draw()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def set_phase(self, name: str, done: int, total: int) -> None:
        """What comes before the first episode, such as a warm-up; the pace counts from its end."""
        self._phase = f"{name} {done}/{total}"
        self._draw_if_due()
        self._began = self._clock()

    def add_episode(self, success: bool) -> None:
        self._phase = ""
        self._done += 1
        self._solved += success
        self._draw_if_due()

    def _draw_if_due(self) -> None:
        interval_s = LINE_INTERVAL_S if self._live is None else LIVE_INTERVAL_S
        if self._clock() - self._drawn >= interval_s:
            self._draw()

    def _draw(self) -> None:
        self._drawn = self._clock()
        if self._live is None:
            self._console.print(sanitize_line(f"{self._label}: {self._words()}"), soft_wrap=True)
        else:
            self._live.update(self._bar(), refresh=True)

    def _words(self) -> str:
        if self._phase:
            return self._phase
        success = f", success {format_percent(self._solved / self._done)}" if self._done else ""
        return f"{self._done}/{self._total} episodes{success}, {format_duration(self._left_s())} left"

    def _bar(self) -> Table:
        grid = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, 1, None):
            grid.add_column(ratio=ratio, no_wrap=True)
        bar = ProgressBar(total=max(1, self._total), completed=self._done, complete_style="cyan")
        label = sanitize_line(self._label)
        label.stylize("bold")
        grid.add_row(label, bar, Text(self._words()))
        return grid

    def _left_s(self) -> float | None:
        """By the pace of this sitting. None until there is one."""
        played = self._done - self._before
        if not played:
            return None
        return (self._clock() - self._began) / played * (self._total - self._done)
