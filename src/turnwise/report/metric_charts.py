"""The metrics that people look at first, in the order in which they do, with how their numbers are written."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.record.metrics import finite_number
from turnwise.report.formatting import format_count, format_decimal, format_length, format_percent
from turnwise.report.svg import BLUE, GRID, INK, ORANGE, line, nice_ticks, opening, rolling_mean, text

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    label: str
    key: str
    format: Callable[[float | None], str]
    is_fraction: bool = False
    """Always between 0 and 1, and drawn so, that two pictures can be compared."""


MAIN_METRICS = (
    Metric(label="success", key="rollout/success", format=format_percent, is_fraction=True),
    Metric(label="reward", key="rollout/reward", format=format_decimal),
    Metric(label="loss", key="train/loss", format=format_decimal),
    Metric(label="entropy", key="train/entropy", format=format_decimal),
    Metric(label="KL to the reference", key="train/kl", format=format_decimal),
    Metric(label="KL of a step", key="train/approx_kl", format=format_decimal),
    Metric(label="response tokens", key="rollout/response_tokens", format=format_length),
    Metric(label="turns", key="rollout/turns", format=format_length),
    Metric(label="gradient norm", key="train/grad_norm", format=format_decimal),
    Metric(label="tokens per second", key="time/tokens_per_s", format=format_count),
    Metric(label="clip fraction", key="train/clip_fraction", format=format_percent),
    Metric(label="sampler-learner mismatch", key="train/mismatch", format=format_decimal),
    Metric(label="KL(sampler | learner), k3", key="train/offpolicy_kl_k3", format=format_decimal),
    Metric(label="chi-squared of sequences", key="train/offpolicy_chi2_sequence", format=format_decimal),
    Metric(label="invalid turns", key="rollout/invalid", format=format_percent),
    Metric(label="groups that fare alike", key="rollout/zero_std_groups", format=format_percent),
)


def metric_points(rows: Sequence[Mapping[str, Any]], key: str) -> Points:
    """(step, value) of the rows that have both."""
    pairs = ((finite_number(row.get("step")), finite_number(row.get(key))) for row in rows)
    return [(step, value) for step, value in pairs if step is not None and value is not None]


def recorded_metrics(
    rows: Sequence[Mapping[str, Any]], metrics: Sequence[Metric] = MAIN_METRICS
) -> list[tuple[Metric, Points]]:
    """Those of the metrics that a run has, with their points."""
    found = [(metric, metric_points(rows, metric.key)) for metric in metrics]
    return [(metric, points) for metric, points in found if points]


WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 34, 28
MAX_POINTS = WIDTH - LEFT - RIGHT
SMOOTH = 15
"""The line is a mean over a fifteenth of the steps; the values themselves are faint behind it."""


def draw_metric_chart(
    points: Points,
    title: str,
    format_value: Callable[[float | None], str],
    *,
    is_fraction: bool = False,
    marks: Sequence[float] = (),
) -> str:
    """`marks`: steps at which something was said about the run, as triangles on the axis."""
    low, high = (0.0, 1.0) if is_fraction else value_range([value for _, value in points])
    first, last = points[0][0], points[-1][0]

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - first) / ((last - first) or 1.0)
        up = (point[1] - low) / (high - low)
        return LEFT + (WIDTH - LEFT - RIGHT) * across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * up

    smooth = rolling_mean([value for _, value in points], window=max(1, len(points) // SMOOTH))
    rolled = [(step, value) for (step, _), value in zip(points, smooth, strict=True)]
    parts = [
        opening(f"{title}: {format_value(points[-1][1])}", WIDTH, HEIGHT),
        text(LEFT, 18, title, size=13, weight="600"),
        text(WIDTH - RIGHT, 18, format_value(smooth[-1]), anchor="end", fill=BLUE, weight="600"),
        *_levels(low, high, format_value, place),
        text(LEFT, HEIGHT - 8, f"{first:g}", size=11),
        text(WIDTH - RIGHT, HEIGHT - 8, f"step {last:g}", anchor="end", size=11),
        _path([place(point) for point in thin_points(points)], width=1, opacity=0.35),
        _path([place(point) for point in thin_points(rolled)], width=2, opacity=1),
        *[_mark(place((step, low))[0]) for step in marks if first <= step <= last],
    ]
    return "".join([*parts, "</svg>\n"])


def thin_points(points: Points, at_most: int = MAX_POINTS) -> Points:
    """Of many points the lowest and the highest in each column: what a person would see of all of them."""
    if len(points) <= 2 * at_most:
        return points
    kept: Points = []
    for column in range(at_most):
        part = points[column * len(points) // at_most : (column + 1) * len(points) // at_most]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """A little more than the values span; never of no height, and not below 0 where no value is."""
    low, high = min(values), max(values)
    spare = 0.05 * (high - low if high > low else abs(high) or 10.0)
    spare = max(spare, 1e-9 * abs(high), 1e-9 * abs(low), 1e-15)  # so that it is seen beside numbers of any size
    return (low - spare if low < 0 else max(low - spare, 0.0)), high + spare


def choose_levels(low: float, high: float, at_most: int = 5) -> list[float]:
    """Round numbers within the range: a few of them."""
    ticks = nice_ticks(high - low, at_most)
    step = ticks[1] if len(ticks) > 1 else high - low
    first = math.ceil(low / step - 1e-9)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)][: 2 * at_most]


def _levels(
    low: float,
    high: float,
    format_value: Callable[[float | None], str],
    place: Callable[[tuple[float, float]], tuple[float, float]],
) -> list[str]:
    parts = []
    for level in choose_levels(low, high):
        _, y = place((0.0, level))
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, stroke=GRID))
        parts.append(text(LEFT - 6, y + 4, format_value(level), anchor="end", size=11))
    bottom = HEIGHT - BOTTOM
    return [*parts, line(LEFT, bottom, WIDTH - RIGHT, bottom, stroke=INK)]


def _mark(x: float) -> str:
    y = HEIGHT - BOTTOM
    return f'<path d="M{x:.1f} {y - 8}l5 8h-10z" fill="{ORANGE}"/>'


def _path(places: Sequence[tuple[float, float]], *, width: float, opacity: float) -> str:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    if len(places) == 1:
        x, y = places[0]
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{BLUE}"/>'
    return (
        f'<polyline points="{joined}" fill="none" stroke="{BLUE}" stroke-width="{width}" stroke-opacity="{opacity}" '
        'stroke-linejoin="round"/>'
    )
