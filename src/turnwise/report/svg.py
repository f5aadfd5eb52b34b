"""The parts of a drawing: self-contained SVG as text, in colours that read on light and on dark pages."""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

INK, GRID = "#7f8790", "#7f879040"
BLUE, ORANGE = "#4c8fd6", "#e0722a"


def opening(title: str, width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(printable(title), {chr(34): "&quot;"})}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">'
    )


def line(x1: float, y1: float, x2: float, y2: float, *, stroke: str, width: float = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" '
        f'stroke-width="{width}" stroke-linecap="round"/>'
    )


def text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    size: int = 13,
    weight: str = "400",
    fill: str = INK,
    turned: bool = False,
) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="{fill}"{turn}>{escape(printable(content))}</text>'
    )


def printable(content: str) -> str:
    """XML has no place for control characters, escaped or not."""
    return "".join(letter if letter.isprintable() else " " for letter in content)


def rolling_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of the last `window` values at each place, of fewer at the start."""
    spans = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return [sum(span) / len(span) for span in spans]


def nice_ticks(right: float, at_most: int = 8) -> list[float]:
    """0, then steps of 1, 2 or 5 times a power of ten, up to `right`."""
    rough = right / at_most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [index * step for index in range(int(right / step + 1e-9) + 1)]
