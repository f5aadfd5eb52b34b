"""How progress looks: redrawn in place, or one aligned line after another."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from turnwise.report.formatting import format_count, format_decimal, format_duration, format_length, format_percent
from turnwise.report.terminal import draw_sparkline, sanitize_line


@dataclass(frozen=True, slots=True)
class ProgressColumn:
    label: str
    metric: str
    format: Callable[[float | None], str]
    width: int

    def cell(self, metrics: Mapping[str, float]) -> str:
        return self.format(metrics.get(self.metric))


COLUMNS = (
    ProgressColumn("success", "rollout/success", format_percent, 7),
    ProgressColumn("reward", "rollout/reward", format_decimal, 7),
    ProgressColumn("response", "rollout/response_tokens", format_length, 6),
    ProgressColumn("entropy", "train/entropy", format_decimal, 7),
    ProgressColumn("KL", "train/kl", format_decimal, 8),
    ProgressColumn("step KL", "train/approx_kl", format_decimal, 8),
    ProgressColumn("tokens/s", "time/tokens_per_s", format_count, 6),
)
"""What a person wants to see of a step. "KL" is the policy's to the reference; where none is kept, "step KL" stands
in its place: how far the step's updates moved the policy from the one that sampled."""


SFT_COLUMNS = (
    ProgressColumn("loss", "train/loss", format_decimal, 7),
    ProgressColumn("gradient", "train/grad_norm", format_decimal, 7),
    ProgressColumn("tokens/s", "time/tokens_per_s", format_count, 6),
)
"""Of a step that imitates demonstrations: nothing is rolled out."""


def choose_columns(metrics: Mapping[str, float]) -> list[ProgressColumn]:
    if "train/loss" in metrics:
        return list(SFT_COLUMNS)
    left_out = "KL" if "train/approx_kl" in metrics and "train/kl" not in metrics else "step KL"
    return [column for column in COLUMNS if column.label != left_out]


SPARKLINE_WIDTH = 48
RECENT_STEPS = 20
"""Steps whose pace the time left is reckoned from; long enough to hold an evaluation or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSnapshot:
    """All that a view shows. `successes`: one a step so far, not to be changed."""

    title: str
    done: int
    total: int
    phase: tuple[str, int, int]
    metrics: Mapping[str, float]
    successes: Sequence[float]
    left_s: float | None


class ProgressView(Protocol):
    phase_interval_s: float
    """Seconds between two drawings, at least, while a step goes on."""
    step_interval_s: float
    """Seconds between two drawings, at least, at the ends of steps; the last step is always drawn."""

    def start(self, snapshot: ProgressSnapshot) -> None: ...
    def draw(self, snapshot: ProgressSnapshot) -> None: ...
    def stop(self, snapshot: ProgressSnapshot) -> None: ...


class LiveView:
    """A bar over the steps, the last step's numbers, and the success of all steps so far."""

    phase_interval_s = 0.2
    step_interval_s = 0.1

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)

    def start(self, snapshot: ProgressSnapshot) -> None:
        self._live.start()
        self.draw(snapshot)

    def draw(self, snapshot: ProgressSnapshot) -> None:
        self._live.update(self._render(snapshot), refresh=True)

    def stop(self, snapshot: ProgressSnapshot) -> None:
        try:
            self.draw(snapshot)
        finally:
            self._live.stop()

    def _render(self, snapshot: ProgressSnapshot) -> RenderableType:
        parts: list[RenderableType] = [_bar(snapshot), _numbers(snapshot)]
        if self._console.encoding.startswith("utf"):
            parts.append(_success_line(snapshot))
        return Group(*parts)


class LineView:
    """For files and pipes: a line at most every two seconds, and within a long step one every half minute."""

    phase_interval_s = 30.0
    step_interval_s = 2.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = 0
        """Steps done at the last step's line."""

    def start(self, snapshot: ProgressSnapshot) -> None:
        self._printed = snapshot.done

    def draw(self, snapshot: ProgressSnapshot) -> None:
        name, done, total = snapshot.phase
        line = f"{_steps(snapshot)}  {name} {done}/{total}" if name else _step_line(snapshot)
        self._printed = self._printed if name else snapshot.done
        self._console.print(Text(line), soft_wrap=True)

    def stop(self, snapshot: ProgressSnapshot) -> None:
        """The last step was done a moment after the last line: it gets its own."""
        if snapshot.metrics and snapshot.done > self._printed:
            self.draw(snapshot)


def _steps(snapshot: ProgressSnapshot) -> str:
    return f"step {snapshot.done:>{len(str(snapshot.total))}}/{snapshot.total}"


def _step_line(snapshot: ProgressSnapshot) -> str:
    cells = [
        f"{column.label} {column.cell(snapshot.metrics):>{column.width}}" for column in choose_columns(snapshot.metrics)
    ]
    return "  ".join([_steps(snapshot), *cells, f"left {format_duration(snapshot.left_s):>7}"])


def _bar(snapshot: ProgressSnapshot) -> Table:
    name, done, total = snapshot.phase
    grid = Table.grid(padding=(0, 1), expand=True)
    for ratio in (None, 1, None, None, None):
        grid.add_column(ratio=ratio, no_wrap=True)
    grid.add_row(
        Text(snapshot.title, style="bold"),
        ProgressBar(total=snapshot.total, completed=snapshot.done, complete_style="cyan", finished_style="green"),
        Text(f"{snapshot.done}/{snapshot.total}"),
        Text(f"{name} {done}/{total}".ljust(18) if name else " " * 18, style="dim"),
        Text(f"{format_duration(snapshot.left_s)} left"),
    )
    return grid


def _numbers(snapshot: ProgressSnapshot) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in choose_columns(snapshot.metrics):
        table.add_column(column.label, justify="right", min_width=column.width, no_wrap=True)
    table.add_row(*(column.cell(snapshot.metrics) for column in choose_columns(snapshot.metrics)))
    return table


def _success_line(snapshot: ProgressSnapshot) -> Text:
    line = draw_sparkline(snapshot.successes, SPARKLINE_WIDTH)
    return Text.assemble(("success ", "dim"), (line.ljust(SPARKLINE_WIDTH), "green"), no_wrap=True)


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
        self._view: ProgressView = LiveView(console) if console.is_interactive else LineView(console)
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
        if not self._told_idle and (reason := explain_idle_step(metrics)) is not None:
            self._told_idle = True
            self.note(f"step {self._done} trained nothing: {reason}")
        if self._done >= self._total or self._clock() - self._drawn >= self._view.step_interval_s:
            self._draw()

    def note(self, text: str) -> None:
        """A line that stays, above the view."""
        self._console.print(sanitize_line(text), soft_wrap=True)

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._view.draw(self._snapshot())

    def _snapshot(self) -> ProgressSnapshot:
        return ProgressSnapshot(
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


EMPTY, IDLE = "train/empty_steps", "train/idle_steps"


def explain_idle_step(row: Mapping[str, Any]) -> str | None:
    """Why the policy learnt nothing in this step and what to change; None where it learnt, or only its critic did."""
    if EMPTY in row:
        return _why_empty(row)
    if IDLE in row:
        return (
            "every advantage was 0, as where the members of a group fare alike: give rewards that tell them apart, "
            "easier tasks, or raise rollout.group_size or rollout.temperature"
        )
    if row.get("train/grad_norm") == 0:
        return "every gradient was 0, as where no token counts: change algo.loss_tokens or algo.advantage_tokens"
    return None


def _why_empty(row: Mapping[str, Any]) -> str:
    if row.get("rollout/sampled_tokens") == 0:
        return "no episode had room for a single token behind its prompt: raise rollout.max_tokens"
    if row.get("rollout/kept_groups") == 0:
        return "the filter kept no group: choose another algo.filter or algo.filter_value"
    return "a limit cut every episode, and algo.truncated drop leaves those out: raise rollout.max_tokens"
