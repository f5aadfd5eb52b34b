"""`turnwise watch`: metrics and alarms of a run in another terminal, read from its files as they grow."""

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

from turnwise.files.run_folders import METRICS_FILE, check_run_folder
from turnwise.record.catalogue import SHOWN, Metric
from turnwise.record.jsonl_follower import JsonlFollower
from turnwise.record.rows import Record, evaluations_with_success, read_records, select, training_s
from turnwise.record.run_folder import is_finished
from turnwise.record.steps import EpisodeSource, StepRecord
from turnwise.report.formatting import format_duration, format_interval, format_metric, format_percent
from turnwise.report.metric_charts import Points, chart_range, recorded_metrics
from turnwise.report.run_report import read_flat_settings
from turnwise.report.terminal import draw_ascii_plot, draw_braille_plot, sanitize_line

REFRESH_S = 1.0
KEPT_METRICS = {"time/total_s"} | {metric.name for metric in SHOWN}
"""Only these metrics of a step are kept in memory; a step has about a hundred."""
PANEL_WIDTH, GAP = 28, 2
MIN_HEADER_WIDTH = 70
"""In a narrower terminal the run's name is on a line of its own."""
MIN_PLOT_HEIGHT, MAX_PLOT_HEIGHT = 2, 7
MAX_ALARMS = 3
RECENT_STEPS = 20
"""The remaining time is estimated from this many steps."""
SILENT_S = 60
"""Seconds without a new row after which the header reports it."""
COLOURS = {"rollout/success": "green", "rollout/reward": "cyan"}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFrame:
    """Everything that is shown at one moment: progress, last evaluation, plots, alarms."""

    title: str
    records: Sequence[Record]
    alarms: Sequence[Row]
    total: int | None
    ended: bool
    """True if the run is finished or its time limit stopped it."""
    finished: bool
    silent_s: float | None
    """Seconds since the last row was written."""
    live: bool = False
    """Redrawn until Ctrl-C, so it has to fit the screen."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height if options.height is not None else console.height
        unicode = console.encoding.lower().startswith("utf")
        alarms = _alarm_lines(self.alarms)
        header = [*_header(self, options.max_width), *_last_evaluation(self.records)]
        spare = height - len(header) - len(alarms) - 3 if self.live else None
        steps = select(self.records, StepRecord)
        parts: list[RenderableType] = [*header, Text(), _panels(steps, options.max_width, spare, unicode)]
        if self.live:
            alarms.append(Text("Ctrl-C stops watching; the run continues", style="dim", no_wrap=True))
        yield Group(*parts, *alarms)


def done_steps(records: Sequence[Record]) -> int:
    return max((record.step for record in records), default=0)


def remaining_s(records: Sequence[Record], total: int | None) -> float | None:
    """Estimate the remaining time from recent steps and their evaluations. None before the first step."""
    done = done_steps(records)
    recent = [record for record in records if record.step > max(done - RECENT_STEPS, 0)]
    steps = len({record.step for record in recent})
    if total is None or not steps:
        return None
    return sum(map(training_s, recent)) / steps * max(total - done, 0)


def _header(frame: WatchFrame, width: int) -> list[RenderableType]:
    """Return the run's name, a progress bar, the steps and the remaining time."""
    done = done_steps(frame.records)
    total = done if frame.finished else frame.total
    name = sanitize_line(frame.title)
    name.stylize("bold")
    name.no_wrap, name.overflow = True, "ellipsis"
    bar = ProgressBar(
        total=total or max(done, 1), completed=done if total else 0, complete_style="cyan", finished_style="green"
    )
    cells: list[RenderableType] = [bar, Text(f"{done}/{total or '?'}"), Text(_state(frame))]
    grid = Table.grid(padding=(0, 1), expand=True)
    if width >= MIN_HEADER_WIDTH:
        grid.add_column(no_wrap=True, max_width=width // 2)
        cells.insert(0, name)
    grid.add_column(ratio=1, min_width=4)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row(*cells)
    return [grid] if width >= MIN_HEADER_WIDTH else [name, grid]


def _state(frame: WatchFrame) -> str:
    if frame.ended:
        return "finished" if frame.finished else "stopped by its time limit"
    left = remaining_s(frame.records, frame.total)
    phase = "running" if done_steps(frame.records) else "starting"
    state = phase if left is None else f"{format_duration(left)} left"
    silent = frame.silent_s
    return f"{state}, silent for {format_duration(silent)}" if silent is not None and silent > SILENT_S else state


def _last_evaluation(records: Sequence[Record]) -> list[RenderableType]:
    evaluated = evaluations_with_success(records)
    if not evaluated:
        return []
    last = evaluated[-1]
    return [
        Text.assemble(
            ("evaluation ", "dim"),
            (format_percent(last.success), "bold green"),
            (f" ({format_interval(last.interval)}) at step {last.step}", "dim"),
            no_wrap=True,
            overflow="ellipsis",
        )
    ]


def _panels(steps: Sequence[StepRecord], width: int, height: int | None, unicode: bool) -> RenderableType:
    """Arrange the plots in a grid. `height`: lines for all of them; None is unlimited."""
    metrics = _plotted_metrics(steps)
    if not metrics:
        return Text("no steps yet", style="dim")
    columns = max(1, min((width + GAP) // (PANEL_WIDTH + GAP), len(metrics)))
    grid_rows = -(-len(metrics) // columns)
    plot_height = MAX_PLOT_HEIGHT
    if height is not None:
        plot_height = min(max(height // grid_rows - 1, MIN_PLOT_HEIGHT), MAX_PLOT_HEIGHT)
        metrics = metrics[: columns * max(height // (plot_height + 1), 1)]
    panel_width = min((width - GAP * (columns - 1)) // columns, 60)
    grid = Table.grid(padding=(0, GAP, 0, 0))
    for _ in range(columns):
        grid.add_column(width=panel_width, no_wrap=True)
    panels = [_panel(metric, points, panel_width, plot_height, unicode) for metric, points in metrics]
    for start in range(0, len(panels), columns):
        grid.add_row(*panels[start : start + columns])
    return grid


def _plotted_metrics(steps: Sequence[StepRecord]) -> list[tuple[Metric, Points]]:
    """Return the metrics to plot with their points. The KL to the reference replaces that of the update."""
    plotted = recorded_metrics(steps, "watch")
    names = {metric.name for metric, _ in plotted}
    replaced = {metric.replaced_by for metric, _ in plotted} & names
    return [(metric, points) for metric, points in plotted if metric.replaced_by not in replaced]


def _panel(metric: Metric, points: Points, width: int, height: int, unicode: bool) -> Text:
    """Draw the label and the last value, then the plot with its range on the left."""
    low, high = chart_range(points, metric)
    ends = (format_metric(metric, high), format_metric(metric, low))
    margin = max(map(len, ends)) + 1
    draw = draw_braille_plot if unicode else draw_ascii_plot
    plot = draw(points, max(width - margin, 4), height, low, high)
    value = format_metric(metric, points[-1][1])
    label_width = max(width - len(value) - 1, 1)
    text = Text(no_wrap=True, overflow="crop")
    text.append(metric.label[:label_width].ljust(label_width + 1), style="bold")
    text.append(value)
    for number, line in enumerate(plot):
        end = ends[0] if number == 0 else ends[1] if number == height - 1 else ""
        text.append(f"\n{end.rjust(margin - 1)} ", style="dim")
        text.append(line, style=COLOURS.get(metric.name, "blue"))
    return text


def _alarm_lines(alarms: Sequence[Row]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for alarm in alarms[-MAX_ALARMS:]:
        line = sanitize_line(f"! step {str(alarm.get('step'))[:12]}: {str(alarm.get('text', ''))[:400]}")
        line.stylize("yellow")
        line.no_wrap, line.overflow = True, "ellipsis"
        lines.append(line)
    return lines


class RunMonitor:
    """Rows and alarms of a run so far; `refresh` reads what is new."""

    def __init__(self, folder: Path) -> None:
        check_run_folder(folder)
        self.folder = folder
        self.records: list[Record] = []
        self.alarms: list[dict[str, Any]] = []
        self._metrics_file = JsonlFollower(folder / METRICS_FILE)
        self._alarms_file = JsonlFollower(folder / "alarms.jsonl")
        steps = read_flat_settings(folder / "config.toml").get("train.steps", "")
        self._steps = int(steps) if steps.isdecimal() else None

    @property
    def ended(self) -> bool:
        """True if the run is finished or its time limit stopped it."""
        return (self.folder / "summary.json").exists()

    def refresh(self) -> bool:
        """Read new rows and alarms. Return whether there were any."""
        metrics, alarms = self._metrics_file.poll(), self._alarms_file.poll()
        if metrics.reset:
            self.records.clear()
        if alarms.reset:
            self.alarms.clear()
        self.records += map(_trim, read_records(metrics.rows))
        self.alarms += alarms.rows
        return bool(metrics.rows or alarms.rows or metrics.reset or alarms.reset)

    def frame(self, *, live: bool) -> WatchFrame:
        return WatchFrame(
            title=self.folder.resolve().name,
            records=self.records,
            alarms=self.alarms,
            total=None if self._is_sft() else self._steps,
            ended=self.ended,
            finished=is_finished(self.folder),
            silent_s=self._silent_s(),
            live=live,
        )

    def _is_sft(self) -> bool:
        """The number of SFT steps depends on the demonstrations, not on `train.steps`."""
        steps = select(self.records[-3:], StepRecord)
        return any(record.source is EpisodeSource.DEMONSTRATIONS for record in steps)

    def _silent_s(self) -> float | None:
        with suppress(OSError):
            return max(time.time() - (self.folder / METRICS_FILE).stat().st_mtime, 0.0)
        return None


def watch(folder: Path, console: Console, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show a run until it finishes or Ctrl-C; once only if it has finished or the console cannot redraw."""
    monitor = RunMonitor(folder)
    monitor.refresh()
    if console.is_interactive and not monitor.ended:
        with suppress(KeyboardInterrupt):
            _watch_live(monitor, console, sleep)
    console.print(monitor.frame(live=False))


def _watch_live(monitor: RunMonitor, console: Console, sleep: Callable[[float], None]) -> None:
    """Redraw on the alternate screen, so that the terminal is restored afterwards."""
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while not monitor.ended:
            live.update(monitor.frame(live=True), refresh=True)
            sleep(REFRESH_S)
            monitor.refresh()
    monitor.refresh()


def _trim(record: Record) -> Record:
    return record.keep(KEPT_METRICS) if isinstance(record, StepRecord) else record
