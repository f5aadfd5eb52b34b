"""Live progress of an evaluation: redrawn in place on a terminal, an occasional line elsewhere."""

import time
from collections.abc import Callable
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
    """Progress of one model's episodes.

        with EvaluationProgress(console, "tiny", total=256) as progress:
            progress.add_episode(success=True)

    There is no thread: the calls themselves redraw, and an exception in the block restores the terminal.
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
        """`done` and `solved` count the episodes before a resume; the estimate of the remaining time ignores them."""
        self._console, self._label, self._clock = console, label, clock
        self._total, self._done, self._solved = total, done, solved
        self._resumed_from, self._started, self._drawn = done, clock(), clock()
        self._phase = ""
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_interactive else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._draw()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def set_phase(self, name: str, done: int, total: int) -> None:
        """Show a phase before the first episode, such as a warm-up. The clock restarts after it."""
        self._phase = f"{name} {done}/{total}"
        self._draw_if_due()
        self._started = self._clock()

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
            self._console.print(sanitize_line(f"{self._label}: {self._text()}"), soft_wrap=True)
        else:
            self._live.update(self._bar(), refresh=True)

    def _text(self) -> str:
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
        grid.add_row(label, bar, Text(self._text()))
        return grid

    def _left_s(self) -> float | None:
        """Estimate the remaining time from the episodes since the start or resume. None before the first of them."""
        num_episodes = self._done - self._resumed_from
        if not num_episodes:
            return None
        return (self._clock() - self._started) / num_episodes * (self._total - self._done)
