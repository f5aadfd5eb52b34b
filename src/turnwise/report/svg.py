"""SVG elements and axis helpers of the charts. The colours are readable on light and on dark pages."""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from turnwise.pictures.text import to_single_line

INK, GRID = "#7f8790", "#7f879040"
BLUE, ORANGE = "#4c8fd6", "#e0722a"


def svg_start(title: str, width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(to_single_line(title), {chr(34): "&quot;"})}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">'
    )


def svg_line(x1: float, y1: float, x2: float, y2: float, *, stroke: str, width: float = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
        f'stroke-width="{width}" stroke-linecap="round"/>'
    )


def svg_text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    size: int = 13,
    weight: str = "400",
    fill: str = INK,
    rotated: bool = False,
) -> str:
    transform = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if rotated else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="{fill}"{transform}>{escape(to_single_line(content))}</text>'
    )


def rolling_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of the last `window` values at each index, of fewer at the start."""
    spans = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return [sum(span) / len(span) for span in spans]


def nice_ticks(right: float, max_ticks: int = 8) -> list[float]:
    """Return ticks from 0 to `right`, spaced by 1, 2 or 5 times a power of ten."""
    rough = right / max_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [index * step for index in range(int(right / step + 1e-9) + 1)]
