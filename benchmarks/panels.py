"""Small multiples as one self-contained SVG: the same axes in every panel, readable on light and on dark pages."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from turnwise.report.learning_curve import nice_ticks, rolling_mean

LEFT, RIGHT, TOP, BOTTOM = 62, 16, 66, 44
GAP_X, GAP_Y = 26, 50
INK, GRID = "#7f8790", "#7f879040"
BLUE, ORANGE = "#4c8fd6", "#e0722a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Contents of one panel, whose vertical axis goes from 0 to `top`."""

    runs: Sequence[Sequence[float]]
    """One value per step, for each seed."""
    title: str = ""
    after: float | None = None
    """Share measured after the last step: shown as a point in another colour and as a number above the panel."""
    label: str = ""
    """Label of the vertical axis; drawn if the panel is the first of its row."""
    top: float = 1.0
    colour: str = BLUE


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Layout of the panels, row by row. Sizes are those of one panel."""

    columns: int
    width: float
    height: float

    def x(self, number: int) -> float:
        return LEFT + number % self.columns * (self.width + GAP_X)

    def y(self, number: int) -> float:
        return TOP + number // self.columns * (self.height + GAP_Y)


def small_multiples(title: str, panels: Sequence[Panel], grid: Grid) -> str:
    """Return an SVG of all panels. The horizontal axis is the training step, up to that of the longest run."""
    steps = max(len(run) for panel in panels for run in panel.runs)
    width = grid.x(grid.columns - 1) + grid.width + RIGHT
    height = grid.y(len(panels) - 1) + grid.height + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(title)}" font-family="system-ui, sans-serif" '
        f'font-size="12" fill="{INK}">',
        _text(LEFT, 24, title, size=15),
    ]
    for number, panel in enumerate(panels):
        x, y = grid.x(number), grid.y(number)
        parts += [*_frame(panel, x, y, grid, labelled=number % grid.columns == 0), *_ticks(steps, x, y, grid)]
        parts += [*_lines(panel, x, y, grid, steps), *_heading(panel, x, y, grid)]
    parts.append(_text((LEFT + width - RIGHT) / 2, height - 8, "training step", anchor="middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _heading(panel: Panel, x: float, y: float, grid: Grid) -> list[str]:
    parts = [_text(x, y - 8, panel.title, size=13)] if panel.title else []
    if panel.after is not None:
        right, height = x + grid.width, y + grid.height * (1 - panel.after / panel.top)
        parts.append(_text(right, y - 8, f"{100 * panel.after:.0f} %", anchor="end", fill=ORANGE))
        parts.append(f'<circle cx="{right:.1f}" cy="{height:.1f}" r="4" fill="{ORANGE}"/>')
    return parts


def _frame(panel: Panel, x: float, y: float, grid: Grid, *, labelled: bool) -> list[str]:
    """Draw three horizontal lines, with labels in the first panel of a row."""
    parts = []
    for share in (0.0, 0.5, 1.0):
        line_y = y + grid.height * (1 - share)
        stroke = GRID if share else INK
        parts.append(f'<line x1="{x:g}" y1="{line_y:g}" x2="{x + grid.width:g}" y2="{line_y:g}" stroke="{stroke}"/>')
        if labelled:
            parts.append(_text(x - 8, line_y + 4, f"{share * panel.top:g}", anchor="end"))
    if labelled and panel.label:
        middle = y + grid.height / 2
        turn = f' transform="rotate(-90 16 {middle:g})"'
        parts.append(f'<text x="16" y="{middle:g}" text-anchor="middle"{turn}>{escape(panel.label)}</text>')
    return parts


def _ticks(steps: int, x: float, y: float, grid: Grid) -> list[str]:
    return [
        _text(x + grid.width * tick / steps, y + grid.height + 15, f"{tick:g}", anchor="middle", size=11)
        for tick in nice_ticks(steps, max_ticks=4)
    ]


def _lines(panel: Panel, x: float, y: float, grid: Grid, steps: int) -> list[str]:
    """Draw the rolling mean over all seeds as a thick line, the seeds (or the values of a single one) as thin lines."""
    rolled = [rolling_mean(run, window=max(1, len(run) // 15)) for run in panel.runs]
    thin = rolled if len(rolled) > 1 else panel.runs
    thick = [statistics.fmean(values) for values in zip(*rolled, strict=True)]
    return [
        _line(values, x, y, grid, steps=steps, top=panel.top, stroke=stroke)
        for values, stroke in [(line, _stroke(panel.colour, 1.0, 0.45)) for line in thin]
        + [(thick, _stroke(panel.colour, 2.5, 1.0))]
    ]


def _line(values: Sequence[float], x: float, y: float, grid: Grid, *, steps: int, top: float, stroke: str) -> str:
    points = " ".join(
        f"{x + grid.width * step / steps:.1f},{y + grid.height * (1 - min(1.0, max(0.0, value / top))):.1f}"
        for step, value in enumerate(values, start=1)
    )
    return f'<polyline points="{points}" fill="none" {stroke} stroke-linejoin="round"/>'


def _stroke(colour: str, width: float, opacity: float) -> str:
    return f'stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}"'


def _text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, fill: str = INK) -> str:
    position = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {position} font-size="{size}" fill="{fill}">{escape(words)}</text>'
