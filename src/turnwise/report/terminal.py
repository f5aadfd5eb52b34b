"""The console that progress and tables are printed on."""

import io
import sys
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console
from rich.text import Text

from turnwise.report.metric_charts import Points

BLOCKS = "▁▂▃▄▅▆▇█"
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""What a dot adds to the letter's number, by row from the top and column."""
BRAILLE = 0x2800


def make_console() -> Console:
    """Standard output. Redrawing only on a real terminal: in a file or a pipe, colours may be forced, motion never.

    A character that the terminal's encoding lacks is replaced, so that no message can end a run.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(force_interactive=None if sys.stdout.isatty() else False, highlight=False)


def sanitize_line(text: str) -> Text:
    """Foreign text as one harmless line: no markup, no control characters, no escape sequences."""
    return Text("".join(letter if letter.isprintable() else " " for letter in text))


def draw_braille_plot(points: Points, width: int, height: int, low: float, high: float) -> list[str]:
    """`height` lines of `width` letters. Values beyond the range stand at its edge."""
    heights = _heights(points, 2 * width, 4 * height, low, high)
    letters = [[BRAILLE] * width for _ in range(height)]
    for column, (bottom, top) in enumerate(heights):
        for dot in range(bottom, top + 1):
            row = 4 * height - 1 - dot
            letters[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    return ["".join(map(chr, line)) for line in letters]


def draw_ascii_plot(points: Points, width: int, height: int, low: float, high: float) -> list[str]:
    """The same for terminals that have letters only."""
    lines = [[" "] * width for _ in range(height)]
    for column, (bottom, top) in enumerate(_heights(points, width, height, low, high)):
        for dot in range(bottom, top + 1):
            lines[height - 1 - dot][column] = "*"
    return ["".join(line) for line in lines]


def _heights(points: Points, columns: int, rows: int, low: float, high: float) -> list[tuple[int, int]]:
    """For each column the dots from the lowest to the highest, counted from 0 at the bottom, joined to a line."""
    levels = [_level(value, rows, low, high) for value in _means(points, columns)]
    found = []
    for place, level in enumerate(levels):
        before = levels[place - 1] if place else level
        # half the way from the column before is this one's, so that a steep line has no holes
        start = level if before == level else before + (1 if before < level else -1)
        found.append((min(start, level), max(start, level)))
    return found


def _level(value: float, rows: int, low: float, high: float) -> int:
    share = (value - low) / ((high - low) or 1.0)
    return min(max(round(share * (rows - 1)), 0), rows - 1)


def _means(points: Points, columns: int) -> list[float]:
    """The mean of what falls into each column; a line between neighbours where nothing does."""
    if len(points) == 1:
        return [points[0][1]] * columns
    first, last = points[0][0], points[-1][0]
    sums, counts = [0.0] * columns, [0] * columns
    for step, value in points:
        place = round((step - first) / ((last - first) or 1.0) * (columns - 1))
        place = min(max(place, 0), columns - 1)
        sums[place] += value
        counts[place] += 1
    return _filled([total / number if number else None for total, number in zip(sums, counts, strict=True)])


def _filled(values: Sequence[float | None]) -> list[float]:
    known = [(place, value) for place, value in enumerate(values) if value is not None]
    filled: list[float] = []
    following = 0
    for place in range(len(values)):
        while following < len(known) - 1 and known[following][0] < place:
            following += 1
        (right, after), (left, before) = known[following], known[max(following - 1, 0)]
        if right <= place or right == left:
            filled.append(after)
        else:
            filled.append(before + (after - before) * (place - left) / (right - left))
    return filled


def draw_sparkline(rates: Sequence[float], width: int) -> str:
    """Rates as blocks from 0 to 1 (never stretched, so that two runs can be compared), at most `width` of them."""
    columns = min(width, len(rates))
    edges = [index * len(rates) // columns for index in range(columns + 1)] if columns else []
    means = [sum(rates[low:high]) / (high - low) for low, high in pairwise(edges)]
    return "".join(BLOCKS[min(int(mean * len(BLOCKS)), len(BLOCKS) - 1)] for mean in means)
