"""The learning curve of a run (success over training) as a self-contained SVG."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from turnwise.record.rows import EvaluationRecord, Record, select
from turnwise.record.steps import SUCCESS, EpisodeSource, StepRecord
from turnwise.report.metric_charts import metric_points
from turnwise.report.svg import BLUE, GRID, INK, ORANGE, nice_ticks, rolling_mean, svg_line, svg_start, svg_text

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 64, 52
TRAIN, EVALUATION = BLUE, ORANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveScale:
    """Maps data to pixels. The success axis always spans 0 to 1."""

    last_step: float

    def x(self, step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.last_step

    def y(self, rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPoint:
    step: float
    rate: float
    low: float
    high: float


def draw_learning_curve(records: Sequence[Record], title: str) -> str:
    """Draw success over training.

    Steps make up a faint line with its rolling mean, evaluations are points with their intervals.
    """
    steps = select(records, StepRecord)
    train = metric_points(steps, SUCCESS)
    stored = any(record.source is EpisodeSource.STORED for record in steps)
    evaluations = list(_points(records))
    scale = CurveScale(
        last_step=max([step for step, _ in train] + [point.step for point in evaluations], default=0.0) or 1.0
    )
    parts = [
        *_frame(title, scale),
        *_training(train, scale),
        *_evaluations(evaluations, scale),
        *_legend(("stored" if stored else "training") if train else None, bool(evaluations)),
    ]
    if not (train or evaluations):
        parts.append(svg_text(WIDTH / 2, HEIGHT / 2, "no steps yet", anchor="middle"))
    return "\n".join([svg_start(title, WIDTH, HEIGHT), *parts, "</svg>"]) + "\n"


def _points(records: Sequence[Record]) -> Iterator[EvaluationPoint]:
    """Yield the evaluations with a success and an interval."""
    for record in select(records, EvaluationRecord):
        low, high = record.interval
        if record.success is not None and low is not None and high is not None:
            yield EvaluationPoint(step=float(record.step), rate=record.success, low=low, high=high)


def _frame(title: str, scale: CurveScale) -> list[str]:
    parts = [svg_text(LEFT, 24, title, size=16, weight="600")]
    for rate in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = scale.y(rate)
        parts.append(svg_line(LEFT, y, WIDTH - RIGHT, y, stroke=GRID if rate else INK))
        parts.append(svg_text(LEFT - 10, y + 4, f"{100 * rate:.0f} %", anchor="end"))
    for tick in nice_ticks(scale.last_step):
        x = scale.x(tick)
        parts.append(svg_line(x, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 5, stroke=INK))
        parts.append(svg_text(x, HEIGHT - BOTTOM + 20, f"{tick:g}", anchor="middle"))
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts.append(svg_text(middle_x, HEIGHT - 10, "training step", anchor="middle"))
    parts.append(svg_text(16, middle_y, "success", anchor="middle", rotated=True))
    return parts


def _training(points: Sequence[tuple[float, float]], scale: CurveScale) -> list[str]:
    smooth = rolling_mean([rate for _, rate in points], window=max(1, len(points) // 15))
    rolled = [(x, rate) for (x, _), rate in zip(points, smooth, strict=True)]
    return [
        _path(points, scale, width=1, opacity=0.35),
        _path(rolled, scale, width=2.5, opacity=1),
    ]


def _evaluations(evaluations: Sequence[EvaluationPoint], scale: CurveScale) -> list[str]:
    parts = []
    for number, evaluation in enumerate(evaluations):
        x, y, low, high = (
            scale.x(evaluation.step),
            scale.y(evaluation.rate),
            scale.y(evaluation.low),
            scale.y(evaluation.high),
        )
        parts.append(svg_line(x, low, x, high, stroke=EVALUATION, width=2))
        parts += [svg_line(x - 5, end, x + 5, end, stroke=EVALUATION, width=2) for end in (low, high)]
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{EVALUATION}"/>')
        if number in (0, len(evaluations) - 1):
            parts.append(_evaluation_label(evaluation, x, y, first=number == 0))
    return parts


def _evaluation_label(evaluation: EvaluationPoint, x: float, y: float, *, first: bool) -> str:
    """Label the first point on its right and the last on its left, so that both stay inside the frame."""
    shift, anchor = (10, "start") if first and x < WIDTH / 2 else (-10, "end")
    label = f"{100 * evaluation.rate:.1f} %"
    return svg_text(x + shift, y - 8, label, anchor=anchor, fill=EVALUATION, weight="600")


def _legend(episodes: str | None, evaluations: bool) -> list[str]:
    """`episodes`: adjective of those of the training line; None without it."""
    entries: list[tuple[str, Callable[[float], str]]] = []
    if episodes is not None:
        entries.append(
            (f"{episodes} episodes, rolling mean", lambda x: svg_line(x, 44, x + 22, 44, stroke=TRAIN, width=2.5))
        )
    if evaluations:
        entries.append(
            ("evaluation, 95 % interval", lambda x: f'<circle cx="{x + 11}" cy="44" r="4.5" fill="{EVALUATION}"/>')
        )
    parts = []
    for number, (label, mark) in enumerate(entries):
        x = LEFT + 240 * number
        parts += [mark(x), svg_text(x + 30, 48, label)]
    return parts


def _path(points: Sequence[tuple[float, float]], scale: CurveScale, *, width: float, opacity: float) -> str:
    pixels = " ".join(f"{scale.x(x):.1f},{scale.y(rate):.1f}" for x, rate in points)
    return (
        f'<polyline points="{pixels}" fill="none" stroke="{TRAIN}" stroke-width="{width}" '
        f'stroke-opacity="{opacity}" stroke-linejoin="round" stroke-linecap="round"/>'
    )
