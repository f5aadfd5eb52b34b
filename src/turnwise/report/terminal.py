"""Terminal output: the console, safe text, sparklines and line plots."""

import io
import sys
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console
from rich.text import Text

from turnwise.report.metric_charts import Points

BLOCKS = "▁▂▃▄▅▆▇█"
BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of each dot of a braille character, which has four rows of two dots."""


def make_console() -> Console:
    """Return a console on standard output that redraws only on a real terminal, even if colours are forced.

    Characters that the encoding lacks are replaced, so that printing a message cannot end a run.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(force_interactive=None if sys.stdout.isatty() else False, highlight=False)


def print_command(console: Console, intro: str, command: str) -> None:
    """Print a command after its introduction, without line breaks, so that it can be copied."""
    console.print(Text.assemble(f"{intro} ", (command, "bold")), soft_wrap=True)


def sanitize_line(text: str) -> Text:
    """Return untrusted text as one line without markup, control characters and escape sequences."""
    return Text("".join(letter if letter.isprintable() else " " for letter in text))


def draw_sparkline(rates: Sequence[float], width: int) -> str:
    """Draw rates between 0 and 1 in at most `width` block characters. Not rescaled, so that runs can be compared."""
    columns = min(width, len(rates))
    edges = [index * len(rates) // columns for index in range(columns + 1)] if columns else []
    means = [sum(rates[low:high]) / (high - low) for low, high in pairwise(edges)]
    return "".join(BLOCKS[min(int(mean * len(BLOCKS)), len(BLOCKS) - 1)] for mean in means)


def draw_braille_plot(points: Points, width: int, height: int, low: float, high: float) -> list[str]:
    """Draw a line plot as `height` lines of `width` braille characters. Values outside the range are clipped."""
    characters = [[BRAILLE] * width for _ in range(height)]
    for column, (bottom, top) in enumerate(_column_spans(points, 2 * width, 4 * height, low, high)):
        for dot in range(bottom, top + 1):
            row = 4 * height - 1 - dot
            characters[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    return ["".join(map(chr, line)) for line in characters]


def draw_ascii_plot(points: Points, width: int, height: int, low: float, high: float) -> list[str]:
    """Draw a line plot as `draw_braille_plot` does, for terminals without Unicode."""
    lines = [[" "] * width for _ in range(height)]
    for column, (bottom, top) in enumerate(_column_spans(points, width, height, low, high)):
        for dot in range(bottom, top + 1):
            lines[height - 1 - dot][column] = "*"
    return ["".join(line) for line in lines]


def _column_spans(points: Points, columns: int, rows: int, low: float, high: float) -> list[tuple[int, int]]:
    """Return the lowest and highest dot of each column, counted from 0 at the bottom, so that the line is connected."""
    levels = [_level(value, rows, low, high) for value in _column_means(points, columns)]
    spans = []
    for column, level in enumerate(levels):
        previous = levels[column - 1] if column else level
        start = level if previous == level else previous + (1 if previous < level else -1)
        spans.append((min(start, level), max(start, level)))
    return spans


def _level(value: float, rows: int, low: float, high: float) -> int:
    fraction = (value - low) / ((high - low) or 1.0)
    return min(max(round(fraction * (rows - 1)), 0), rows - 1)


def _column_means(points: Points, columns: int) -> list[float]:
    """Average the values of each column; interpolate columns without values."""
    if len(points) == 1:
        return [points[0][1]] * columns
    first, last = points[0][0], points[-1][0]
    sums, counts = [0.0] * columns, [0] * columns
    for step, value in points:
        column = round((step - first) / ((last - first) or 1.0) * (columns - 1))
        column = min(max(column, 0), columns - 1)
        sums[column] += value
        counts[column] += 1
    return _interpolate([total / number if number else None for total, number in zip(sums, counts, strict=True)])


def _interpolate(values: Sequence[float | None]) -> list[float]:
    known = [(index, value) for index, value in enumerate(values) if value is not None]
    filled: list[float] = []
    following = 0
    for index in range(len(values)):
        while following < len(known) - 1 and known[following][0] < index:
            following += 1
        (right, after), (left, before) = known[following], known[max(following - 1, 0)]
        if right <= index or right == left:
            filled.append(after)
        else:
            filled.append(before + (after - before) * (index - left) / (right - left))
    return filled
