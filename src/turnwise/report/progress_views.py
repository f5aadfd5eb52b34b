"""How progress looks: redrawn in place, or one aligned line after another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from turnwise.record.numbers import count, decimal, duration, length, percent, sparkline


@dataclass(frozen=True, slots=True)
class Column:
    label: str
    metric: str
    write: Callable[[float | None], str]
    width: int

    def cell(self, metrics: Mapping[str, float]) -> str:
        return self.write(metrics.get(self.metric))


COLUMNS = (
    Column("success", "rollout/success", percent, 7),
    Column("reward", "rollout/reward", decimal, 7),
    Column("response", "rollout/response_tokens", length, 6),
    Column("entropy", "train/entropy", decimal, 7),
    Column("KL", "train/kl", decimal, 8),
    Column("step KL", "train/approx_kl", decimal, 8),
    Column("tokens/s", "time/tokens_per_s", count, 6),
)
"""What a person wants to see of a step. "KL" is the policy's to the reference; where none is kept, "step KL" stands
in its place: how far the step's updates moved the policy from the one that sampled."""


IMITATION = (
    Column("loss", "train/loss", decimal, 7),
    Column("gradient", "train/grad_norm", decimal, 7),
    Column("tokens/s", "time/tokens_per_s", count, 6),
)
"""Of a step that imitates demonstrations: nothing is rolled out."""


def columns_of(metrics: Mapping[str, float]) -> list[Column]:
    if "train/loss" in metrics:
        return list(IMITATION)
    left_out = "KL" if "train/approx_kl" in metrics and "train/kl" not in metrics else "step KL"
    return [column for column in COLUMNS if column.label != left_out]


SPARKLINE_WIDTH = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a view shows. `successes`: one a step so far, not to be changed."""

    title: str
    done: int
    total: int
    phase: tuple[str, int, int]
    metrics: Mapping[str, float]
    successes: Sequence[float]
    left_s: float | None


class View(Protocol):
    phase_interval_s: float
    """Seconds between two drawings, at least, while a step goes on."""
    step_interval_s: float
    """Seconds between two drawings, at least, at the ends of steps; the last step is always drawn."""

    def start(self, snapshot: Snapshot) -> None: ...
    def draw(self, snapshot: Snapshot) -> None: ...
    def stop(self, snapshot: Snapshot) -> None: ...


class LiveView:
    """A bar over the steps, the last step's numbers, and the success of all steps so far."""

    phase_interval_s = 0.2
    step_interval_s = 0.1

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)

    def start(self, snapshot: Snapshot) -> None:
        self._live.start()
        self.draw(snapshot)

    def draw(self, snapshot: Snapshot) -> None:
        self._live.update(self._render(snapshot), refresh=True)

    def stop(self, snapshot: Snapshot) -> None:
        try:
            self.draw(snapshot)
        finally:
            self._live.stop()

    def _render(self, snapshot: Snapshot) -> RenderableType:
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

    def start(self, snapshot: Snapshot) -> None:
        self._printed = snapshot.done

    def draw(self, snapshot: Snapshot) -> None:
        name, done, total = snapshot.phase
        line = f"{_steps(snapshot)}  {name} {done}/{total}" if name else _step_line(snapshot)
        self._printed = self._printed if name else snapshot.done
        self._console.print(Text(line), soft_wrap=True)

    def stop(self, snapshot: Snapshot) -> None:
        """The last step was done a moment after the last line: it gets its own."""
        if snapshot.metrics and snapshot.done > self._printed:
            self.draw(snapshot)


def _steps(snapshot: Snapshot) -> str:
    return f"step {snapshot.done:>{len(str(snapshot.total))}}/{snapshot.total}"


def _step_line(snapshot: Snapshot) -> str:
    cells = [
        f"{column.label} {column.cell(snapshot.metrics):>{column.width}}" for column in columns_of(snapshot.metrics)
    ]
    return "  ".join([_steps(snapshot), *cells, f"left {duration(snapshot.left_s):>7}"])


def _bar(snapshot: Snapshot) -> Table:
    name, done, total = snapshot.phase
    grid = Table.grid(padding=(0, 1), expand=True)
    for ratio in (None, 1, None, None, None):
        grid.add_column(ratio=ratio, no_wrap=True)
    grid.add_row(
        Text(snapshot.title, style="bold"),
        ProgressBar(total=snapshot.total, completed=snapshot.done, complete_style="cyan", finished_style="green"),
        Text(f"{snapshot.done}/{snapshot.total}"),
        Text(f"{name} {done}/{total}".ljust(18) if name else " " * 18, style="dim"),
        Text(f"{duration(snapshot.left_s)} left"),
    )
    return grid


def _numbers(snapshot: Snapshot) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in columns_of(snapshot.metrics):
        table.add_column(column.label, justify="right", min_width=column.width, no_wrap=True)
    table.add_row(*(column.cell(snapshot.metrics) for column in columns_of(snapshot.metrics)))
    return table


def _success_line(snapshot: Snapshot) -> Text:
    line = sparkline(snapshot.successes, SPARKLINE_WIDTH)
    return Text.assemble(("success ", "dim"), (line.ljust(SPARKLINE_WIDTH), "green"), no_wrap=True)
