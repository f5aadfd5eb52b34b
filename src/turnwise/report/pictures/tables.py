"""Cells that are text and not things: a table of boxes, wide enough to read; boards of letters stay as they are."""

from dataclasses import dataclass

from turnwise.report.pictures.letters import clipped, shown, visible, width_of, wrapped
from turnwise.report.pictures.shapes import Box, Label, Shape
from turnwise.report.pictures.worlds import DARK, Rows

SIZE, LINE = 14.0, 18.0
MONO_LINE = 16.0
"""Close enough for box-drawing lines to join."""
LETTER = 0.6 * SIZE
"""The width of one column of text, as in fonts of fixed width."""
PADDING = 10.0
GAP = 4.0
COLUMNS, LINES = 28, 6
"""Of an ordinary cell's text, at most; a block of several lines may have more."""
BLOCK_COLUMNS, BLOCK_LINES = 120, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    lines: list[str]
    mono: bool

    @property
    def width(self) -> float:
        return LETTER * max((width_of(line) for line in self.lines), default=1) + 2 * PADDING

    @property
    def height(self) -> float:
        return (MONO_LINE if self.mono else LINE) * len(self.lines) + PADDING


def table(rows: Rows) -> tuple[float, float, list[Shape]]:
    """Width, height and shapes."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(row[column].width for row in texts if column < len(row)) for column in range(max(map(len, texts)))]
    shapes: list[Shape] = []
    y = 0.0
    for row in texts:
        height = max((text.height for text in row), default=0.0)
        x = 0.0
        for text, width in zip(row, widths, strict=False):
            shapes += _cell(text, x, y, width, height)
            x += width + GAP
        y += height + GAP
    return sum(widths) + GAP * (len(widths) - 1), y - GAP, shapes


def _text(cell: str) -> _Text:
    """Several lines are a board made of letters: kept as they are, in letters of one width."""
    if "\n" in cell.strip():
        kept = visible(cell[: BLOCK_COLUMNS * BLOCK_LINES]).strip("\n").expandtabs(4).split("\n")[:BLOCK_LINES]
        return _Text(lines=[clipped(line, BLOCK_COLUMNS) for line in kept], mono=True)
    return _Text(lines=wrapped(shown(cell), COLUMNS, LINES), mono=False)


def _cell(text: _Text, x: float, y: float, width: float, height: float) -> list[Shape]:
    shapes: list[Shape] = [
        Box(x=x + 0.5, y=y + 0.5, width=width - 1, height=height - 1, fill="#ffffff", stroke="#a3abb4", radius=4)
    ]
    pitch = MONO_LINE if text.mono else LINE
    top = y + (height - pitch * len(text.lines)) / 2 + pitch / 2
    for number, line in enumerate(text.lines):
        middle = top + pitch * number
        if text.mono:
            shapes.append(Label(x=x + PADDING, y=middle, text=line, size=SIZE, fill=DARK, anchor="start", mono=True))
        elif line:
            shapes.append(Label(x=x + width / 2, y=middle, text=line, size=SIZE, fill=DARK))
    return shapes
