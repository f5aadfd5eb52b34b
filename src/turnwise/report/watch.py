"""Watching a run from another terminal: its files are read as they grow, and the run is not touched."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from turnwise.core.errors import UserError
from turnwise.record.jsonl_follower import JsonlFollower
from turnwise.record.metrics import finite_number
from turnwise.report.formatting import format_duration, format_interval, format_percent
from turnwise.report.metric_charts import MAIN_METRICS, Metric, Points, recorded_metrics, value_range
from turnwise.report.run_report import read_flat_settings
from turnwise.report.terminal import draw_ascii_plot, draw_braille_plot, sanitize_line

WATCHED = tuple(
    metric
    for metric in MAIN_METRICS
    if metric.key
    in {
        "rollout/success",
        "rollout/reward",
        "train/loss",
        "train/entropy",
        "train/kl",
        "train/approx_kl",
        "rollout/response_tokens",
        "train/grad_norm",
        "time/tokens_per_s",
    }
)
PANEL_WIDTH, GAP = 28, 2
NARROW = 70
"""Below, the run's name has a line of its own."""
PLOT_HEIGHTS = (2, 7)
"""Of a plot, at least and at most."""
ALARMS = 3
RECENT_STEPS = 20
COLOURS = {"rollout/success": "green", "rollout/reward": "cyan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFrame:
    """All that is shown. `silent_s`: since something was written."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    alarms: Sequence[Mapping[str, Any]]
    total: int | None
    finished: bool
    silent_s: float | None
    live: bool = False
    """It is drawn again and again, and Ctrl-C ends that: so it has to fit the screen."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height if options.height is not None else console.height
        alarms = _alarm_lines(self.alarms)
        head = [*_head(self, options.max_width), *_evaluation(self.rows)]
        spare = height - len(head) - len(alarms) - 3 if self.live else None
        parts: list[RenderableType] = [*head, Text(), _panels(self.rows, options.max_width, spare, _fine(console))]
        if self.live:
            alarms.append(Text("Ctrl-C ends watching; the run goes on", style="dim", no_wrap=True))
        yield Group(*parts, *alarms)


def _fine(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")


def done_steps(rows: Sequence[Mapping[str, Any]]) -> int:
    return max((int(step) for row in rows if (step := finite_number(row.get("step"))) is not None), default=0)


def remaining_s(rows: Sequence[Mapping[str, Any]], total: int | None) -> float | None:
    """By the pace of the last steps, their evaluations included; None until there is a pace."""
    done = done_steps(rows)
    recent = [row for row in rows if (finite_number(row.get("step")) or 0) > max(done - RECENT_STEPS, 0)]
    steps = len({row["step"] for row in recent})
    if total is None or not steps:
        return None
    seconds = sum(finite_number(row.get("time/total_s")) or 0.0 for row in recent if row.get("eval/name") != "after")
    return seconds / steps * max(total - done, 0)


def _head(frame: WatchFrame, width: int) -> list[RenderableType]:
    """The run's name, a bar, the steps, and how long it will take."""
    done = done_steps(frame.rows)
    total = done if frame.finished else frame.total
    name = sanitize_line(frame.title)
    name.stylize("bold")
    name.no_wrap, name.overflow = True, "ellipsis"
    bar = ProgressBar(
        total=total or max(done, 1), completed=done if total else 0, complete_style="cyan", finished_style="green"
    )
    cells: list[RenderableType] = [bar, Text(f"{done}/{total or '?'}"), Text(_state(frame))]
    grid = Table.grid(padding=(0, 1), expand=True)
    if width >= NARROW:
        grid.add_column(no_wrap=True, max_width=width // 2)
        cells.insert(0, name)
    grid.add_column(ratio=1, min_width=4)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row(*cells)
    return [grid] if width >= NARROW else [name, grid]


def _state(frame: WatchFrame) -> str:
    if frame.finished:
        return "finished"
    left = remaining_s(frame.rows, frame.total)
    going = "running" if done_steps(frame.rows) else "starting"
    ahead = going if left is None else f"{format_duration(left)} left"
    quiet = frame.silent_s
    return f"{ahead}, silent for {format_duration(quiet)}" if quiet is not None and quiet > 60 else ahead


def _evaluation(rows: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    found = [row for row in rows if finite_number(row.get("eval/success")) is not None]
    if not found:
        return []
    last = found[-1]
    ends = (finite_number(last.get("eval/success_low")), finite_number(last.get("eval/success_high")))
    success = format_percent(finite_number(last["eval/success"]))
    return [
        Text.assemble(
            ("evaluated ", "dim"),
            (success, "bold green"),
            (f" ({format_interval(ends)}) at step {done_steps([last])}", "dim"),
            no_wrap=True,
            overflow="ellipsis",
        )
    ]


def _panels(rows: Sequence[Mapping[str, Any]], width: int, height: int | None, fine: bool) -> RenderableType:
    found = _chosen(rows)
    if not found:
        return Text("no steps yet", style="dim")
    columns = max(1, min((width + GAP) // (PANEL_WIDTH + GAP), len(found)))
    lowest, highest = PLOT_HEIGHTS
    lines = -(-len(found) // columns)
    plot = highest if height is None else min(max(height // lines - 1, lowest), highest)
    if height is not None:
        found = found[: columns * max(height // (plot + 1), 1)]
    each = min((width - GAP * (columns - 1)) // columns, 60)
    grid = Table.grid(padding=(0, GAP, 0, 0))
    for _ in range(columns):
        grid.add_column(width=each, no_wrap=True)
    panels = [_panel(metric, points, each, plot, fine) for metric, points in found]
    for start in range(0, len(panels), columns):
        grid.add_row(*panels[start : start + columns])
    return grid


def _chosen(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Metric, Points]]:
    """One KL is enough: that to the reference, where there is one."""
    found = recorded_metrics(rows, WATCHED)
    keys = {metric.key for metric, _ in found}
    return [each for each in found if each[0].key != "train/approx_kl" or "train/kl" not in keys]


def _panel(metric: Metric, points: Points, width: int, height: int, fine: bool) -> Text:
    """Name and last value, then the plot with its range at the left."""
    low, high = (0.0, 1.0) if metric.is_fraction else value_range([value for _, value in points])
    ends = (metric.format(high), metric.format(low))
    margin = max(map(len, ends)) + 1
    plot = (draw_braille_plot if fine else draw_ascii_plot)(points, max(width - margin, 4), height, low, high)
    value = metric.format(points[-1][1])
    room = max(width - len(value) - 1, 1)
    text = Text(no_wrap=True, overflow="crop")
    text.append(metric.label[:room].ljust(room + 1), style="bold")
    text.append(value)
    for number, line in enumerate(plot):
        label = ends[0] if number == 0 else ends[1] if number == height - 1 else ""
        text.append(f"\n{label.rjust(margin - 1)} ", style="dim")
        text.append(line, style=COLOURS.get(metric.key, "blue"))
    return text


def _alarm_lines(alarms: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for alarm in alarms[-ALARMS:]:
        line = sanitize_line(f"! step {str(alarm.get('step'))[:12]}: {str(alarm.get('text', ''))[:400]}")
        line.stylize("yellow")
        line.no_wrap, line.overflow = True, "ellipsis"
        lines.append(line)
    return lines


INTERVAL_S = 1.0
KEPT = frozenset(
    {
        "step",
        "eval/name",
        "eval/success",
        "eval/success_low",
        "eval/success_high",
        "time/total_s",
        *(metric.key for metric in MAIN_METRICS),
    }
)
"""What is remembered of a row: a long run has many, and each has a hundred numbers."""


class RunMonitor:
    """A run's rows and alarms so far; `look` takes in what is new."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "config.toml").is_file():
            raise UserError(f"{folder} is no run folder (it has no config.toml): give the path of a run, as runs/NAME")
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self.alarms: list[dict[str, Any]] = []
        self._metrics = JsonlFollower(folder / "metrics.jsonl")
        self._told = JsonlFollower(folder / "alarms.jsonl")
        steps = read_flat_settings(folder / "config.toml").get("train.steps", "")
        self._steps = int(steps) if steps.isdecimal() else None

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").exists()

    def refresh(self) -> bool:
        """Whether anything is new."""
        fresh, told = self._metrics.poll(), self._told.poll()
        if fresh.reset:
            self.rows.clear()
        if told.reset:
            self.alarms.clear()
        self.rows += [{key: row[key] for key in row.keys() & KEPT} for row in fresh.rows if _has_step(row)]
        self.alarms += told.rows
        return bool(fresh.rows or told.rows or fresh.reset or told.reset)

    def frame(self, *, live: bool) -> WatchFrame:
        return WatchFrame(
            title=self.folder.resolve().name,
            rows=self.rows,
            alarms=self.alarms,
            total=None if self._imitates() else self._steps,
            finished=self.finished,
            silent_s=self._silent_s(),
            live=live,
        )

    def _imitates(self) -> bool:
        """Imitation has as many steps as its demonstrations make: not what `train.steps` says."""
        return any("train/loss" in row for row in self.rows[-3:])

    def _silent_s(self) -> float | None:
        with suppress(OSError):
            return max(time.time() - (self.folder / "metrics.jsonl").stat().st_mtime, 0.0)
        return None


def watch(folder: Path, console: Console, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Until the run is finished or Ctrl-C. What has ended, or has no terminal to be redrawn on, is shown once."""
    watched = RunMonitor(folder)
    watched.refresh()
    if console.is_interactive and not watched.finished:
        with suppress(KeyboardInterrupt):
            _follow(watched, console, sleep)
    console.print(watched.frame(live=False))


def _follow(watched: RunMonitor, console: Console, sleep: Callable[[float], None]) -> None:
    """On a screen of its own, which gives the terminal back as it was."""
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while not watched.finished:
            live.update(watched.frame(live=True), refresh=True)
            sleep(INTERVAL_S)
            watched.refresh()
    watched.refresh()


def _has_step(row: dict[str, Any]) -> bool:
    return isinstance(row.get("step"), int)
