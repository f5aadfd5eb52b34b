"""Charts of the main metrics of a run, each as a small SVG."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from turnwise.record.catalogue import SHOWN, Metric, Place
from turnwise.record.steps import StepRecord, finite_number
from turnwise.report.formatting import format_metric
from turnwise.report.svg import BLUE, GRID, INK, ORANGE, nice_ticks, rolling_mean, svg_line, svg_start, svg_text

Points = list[tuple[float, float]]


WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 34, 28
MAX_POINTS = WIDTH - LEFT - RIGHT
SMOOTHING = 15
"""The line is a rolling mean over 1/15 of the steps; the values themselves are drawn faintly."""


def metric_points(steps: Iterable[StepRecord], name: str) -> Points:
    """Return (step, value) of the steps with a finite value."""
    pairs = ((float(record.step), finite_number(record.get(name))) for record in steps)
    return [(step, value) for step, value in pairs if value is not None]


def recorded_metrics(steps: Sequence[StepRecord], place: Place) -> list[tuple[Metric, Points]]:
    """Return the metrics that have a chart in this place and that a run has recorded, with their points."""
    all_points = [(metric, metric_points(steps, metric.name)) for metric in SHOWN if place in metric.places]
    return [(metric, points) for metric, points in all_points if points]


def draw_metric_chart(points: Points, metric: Metric, marks: Sequence[float] = ()) -> str:
    """Return the chart of one metric as SVG. `marks`: steps of alarms, drawn as triangles on the axis."""
    title, format_value = metric.label, partial(format_metric, metric)
    low, high = chart_range(points, metric)
    first, last = points[0][0], points[-1][0]

    def to_pixels(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - first) / ((last - first) or 1.0)
        up = (point[1] - low) / (high - low)
        return LEFT + (WIDTH - LEFT - RIGHT) * across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * up

    smooth = rolling_mean([value for _, value in points], window=max(1, len(points) // SMOOTHING))
    rolled = [(step, value) for (step, _), value in zip(points, smooth, strict=True)]
    parts = [
        svg_start(f"{title}: {format_value(points[-1][1])}", WIDTH, HEIGHT),
        svg_text(LEFT, 18, title, size=13, weight="600"),
        svg_text(WIDTH - RIGHT, 18, format_value(smooth[-1]), anchor="end", fill=BLUE, weight="600"),
        *_grid_lines(low, high, format_value, to_pixels),
        svg_text(LEFT, HEIGHT - 8, f"{first:g}", size=11),
        svg_text(WIDTH - RIGHT, HEIGHT - 8, f"step {last:g}", anchor="end", size=11),
        _path([to_pixels(point) for point in thin_points(points)], width=1, opacity=0.35),
        _path([to_pixels(point) for point in thin_points(rolled)], width=2, opacity=1),
        *[_alarm_mark(to_pixels((step, low))[0]) for step in marks if first <= step <= last],
    ]
    return "".join([*parts, "</svg>\n"])


def thin_points(points: Points, columns: int = MAX_POINTS) -> Points:
    """Keep only the lowest and the highest point of each pixel column, which looks the same."""
    if len(points) <= 2 * columns:
        return points
    kept: Points = []
    for column in range(columns):
        members = points[column * len(points) // columns : (column + 1) * len(points) // columns]
        ends = {min(members, key=lambda point: point[1]), max(members, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def chart_range(points: Points, metric: Metric) -> tuple[float, float]:
    return (0.0, 1.0) if metric.from_0_to_1 else value_range([value for _, value in points])


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """Return a range slightly wider than the values; never empty, and not below 0 unless a value is."""
    low, high = min(values), max(values)
    spare = 0.05 * (high - low if high > low else abs(high) or 10.0)
    spare = max(spare, 1e-9 * abs(high), 1e-9 * abs(low), 1e-15)  # not lost in rounding
    return (low - spare if low < 0 else max(low - spare, 0.0)), high + spare


MAX_LEVELS = 5
"""Grid lines, about."""


def choose_levels(low: float, high: float) -> list[float]:
    """Return a few round numbers within the range, for the grid lines."""
    ticks = nice_ticks(high - low, MAX_LEVELS)
    step = ticks[1] if len(ticks) > 1 else high - low
    first = math.ceil(low / step - 1e-9)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)][: 2 * MAX_LEVELS]


def _grid_lines(
    low: float,
    high: float,
    format_value: Callable[[float | None], str],
    to_pixels: Callable[[tuple[float, float]], tuple[float, float]],
) -> list[str]:
    parts = []
    for level in choose_levels(low, high):
        _, y = to_pixels((0.0, level))
        parts.append(svg_line(LEFT, y, WIDTH - RIGHT, y, stroke=GRID))
        parts.append(svg_text(LEFT - 6, y + 4, format_value(level), anchor="end", size=11))
    bottom = HEIGHT - BOTTOM
    return [*parts, svg_line(LEFT, bottom, WIDTH - RIGHT, bottom, stroke=INK)]


def _alarm_mark(x: float) -> str:
    y = HEIGHT - BOTTOM
    return f'<path d="M{x:.1f} {y - 8}l5 8h-10z" fill="{ORANGE}"/>'


def _path(pixels: Sequence[tuple[float, float]], *, width: float, opacity: float) -> str:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    if len(pixels) == 1:
        x, y = pixels[0]
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{BLUE}"/>'
    return (
        f'<polyline points="{joined}" fill="none" stroke="{BLUE}" stroke-width="{width}" stroke-opacity="{opacity}" '
        'stroke-linejoin="round"/>'
    )
