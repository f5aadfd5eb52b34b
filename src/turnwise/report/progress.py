"""Live progress of a training run: a redrawn view on a terminal, plain lines elsewhere."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console

from turnwise.report.console import one_line
from turnwise.report.idle import why_idle
from turnwise.report.progress_views import LineView, LiveView, Snapshot, View

RECENT_STEPS = 20
"""Steps whose pace the time left is reckoned from; long enough to hold an evaluation or two."""


class Progress:
    """`with Progress(200, console) as progress:` then `begin`, `phase` often, `step` after each, `note` any time.

    There is no thread: the view is redrawn from these calls, at most a few times a second, so that nothing is printed
    after the block, and an exception or Ctrl-C in it gives the terminal back as it was.
    """

    def __init__(
        self,
        total_steps: int,
        console: Console,
        *,
        title: str = "training",
        limit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit_s`: training stops this long after `begin`, finished or not."""
        self._console = console
        self._clock = clock
        self._started = clock()
        self._limit_s = limit_s
        self._ends: deque[float] = deque(maxlen=RECENT_STEPS + 1)
        self._title = title
        self._total = total_steps
        self._done = 0
        self._phase = ("", 0, 0)
        self._metrics: Mapping[str, float] = {}
        self._successes: list[float] = []
        self._view: View = LiveView(console) if console.is_interactive else LineView(console)
        self._drawn = self._started
        self._told_idle = False

    def __enter__(self) -> Self:
        self._view.start(self._snapshot())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._phase = ("", 0, 0)
        self._view.stop(self._snapshot())

    def begin(self, done: int, total: int | None = None) -> None:
        """Training begins, or goes on after `done` steps: pace and limit count from here, not from the set-up.

        `total`: how many steps there are, where that was not known before.
        """
        self._total = self._total if total is None else total
        self._started = self._clock()
        self._ends.append(self._started)
        self._done = done

    def phase(self, name: str, done: int, total: int) -> None:
        """What the step is doing, as ("rollout", 120, 256). Cheap: call it as often as you like."""
        self._phase = (name, done, total)
        if self._clock() - self._drawn >= self._view.phase_interval_s:
            self._draw()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Step `step`, counted from 0, is done. The first that trained nothing is told, with the mend."""
        self._ends.append(self._clock())
        self._done = step + 1
        self._phase = ("", 0, 0)
        self._metrics = dict(metrics)
        success = metrics.get("rollout/success", math.nan)
        if math.isfinite(success):
            self._successes.append(success)
        if not self._told_idle and (reason := why_idle(metrics)) is not None:
            self._told_idle = True
            self.note(f"step {self._done} trained nothing: {reason}")
        if self._done >= self._total or self._clock() - self._drawn >= self._view.step_interval_s:
            self._draw()

    def note(self, text: str) -> None:
        """A line that stays, above the view."""
        self._console.print(one_line(text), soft_wrap=True)

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._view.draw(self._snapshot())

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            title=self._title,
            done=self._done,
            total=self._total,
            phase=self._phase,
            metrics=self._metrics,
            successes=self._successes,
            left_s=self._left_s(),
        )

    def _left_s(self) -> float | None:
        """By the recent steps' pace, but not beyond the run's limit. None until there is a pace."""
        if len(self._ends) < 2:
            return None
        pace = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        left = pace * (self._total - self._done) - (self._clock() - self._ends[-1])
        if self._limit_s is not None:
            left = min(left, self._limit_s - (self._clock() - self._started))
        return max(left, 0.0)
