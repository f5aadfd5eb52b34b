"""Success of evaluated models with confidence intervals, as a self-contained SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.pictures.text import to_single_line
from turnwise.report.formatting import format_percent
from turnwise.report.svg import BLUE, GRID, INK, ORANGE, svg_line, svg_start, svg_text

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 720, 210, 96, 66, 48
ROW = 40
MAX_LABEL = 28
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessBar:
    """One model: success, 95 % interval, and pass@k if it had several attempts per task."""

    label: str
    success: float
    low: float
    high: float
    pass_at_k: float | None = None


def draw_success_chart(bars: Sequence[SuccessBar], title: str, tries: int = 1) -> str:
    """Draw one row per model: a point, its 95 % interval, and a ring for pass@`tries`."""
    height = TOP + ROW * len(bars) + BOTTOM
    parts = [
        svg_start(title, WIDTH, height),
        svg_text(16, 26, title, size=16, weight="600"),
        *_legend(tries if any(bar.pass_at_k is not None for bar in bars) else 1),
        *_grid(height),
    ]
    for number, bar in enumerate(bars):
        parts += _row(bar, TOP + ROW * (number + 0.5))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(rate: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * rate


def _grid(height: float) -> list[str]:
    bottom = height - BOTTOM
    parts = []
    for rate in TICKS:
        parts.append(svg_line(_x(rate), TOP, _x(rate), bottom, stroke=GRID if rate else INK))
        parts.append(svg_text(_x(rate), bottom + 18, f"{100 * rate:.0f} %", anchor="middle"))
    return [*parts, svg_text(_x(0.5), height - 8, "success", anchor="middle")]


def _legend(tries: int) -> list[str]:
    parts = [_point(22, 46), svg_text(34, 50, "success, 95 % interval")]
    return parts if tries == 1 else [*parts, _ring(212, 46), svg_text(224, 50, f"pass@{tries}")]


def _row(bar: SuccessBar, y: float) -> list[str]:
    ends = (_x(bar.low), _x(bar.high))
    parts = [
        svg_text(LEFT - 12, y + 4, _short(bar.label), anchor="end"),
        svg_line(ends[0], y, ends[1], y, stroke=ORANGE, width=2),
        *(svg_line(end, y - 5, end, y + 5, stroke=ORANGE, width=2) for end in ends),
        _point(_x(bar.success), y),
        svg_text(WIDTH - RIGHT + 14, y + 4, format_percent(bar.success), fill=ORANGE, weight="600"),
    ]
    return parts if bar.pass_at_k is None else [*parts, _ring(_x(bar.pass_at_k), y)]


def _point(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{ORANGE}"/>'


def _ring(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="none" stroke="{BLUE}" stroke-width="2"/>'


def _short(label: str) -> str:
    """Keep the end of a long label, which distinguishes models best."""
    label = to_single_line(label)
    return label if len(label) <= MAX_LABEL else "..." + label[len(label) - MAX_LABEL + 3 :]
