"""A state's picture, as an environment gave it: a grid of named cells, drawn.

A picture is a row's {"rows": [[cell name, ...], ...], "caption": text, "info": {name: text}}. It may come from any
environment, or from a file that anybody wrote: whatever it holds, what comes out is a small and harmless drawing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from turnwise.report.formatting import clip, display_width, show_invisible, to_single_line, wrap
from turnwise.report.pictures.boards import choose_board
from turnwise.report.pictures.gridworlds import DARK, CellRows, draw_gridworld, is_known_cell
from turnwise.report.pictures.shapes import Drawing, Label, Rect, Shape, drawing_to_svg

MAX_CELLS, MAX_SIDE = 1024, 128
"""Beyond, no person sees anything in it, and a page full of them would be slow."""
MAX_CELL_TEXT = 8000
MAX_NOTES = 8
MAX_LINES = 6
MARGIN, NOTE_LINE, NOTE_SIZE = 2.0, 18.0, 13.0
NOTE_INK = "#757d87"
"""Readable on light and on dark pages."""
NARROWEST = 150.0


def draw_picture_svg(picture: Mapping[str, Any]) -> str:
    """Self-contained SVG that runs nothing and loads nothing."""
    return drawing_to_svg(draw_picture(picture))


def draw_picture(picture: Mapping[str, Any]) -> Drawing:
    """The same as shapes, for those who make pixels of it."""
    given = picture.get("rows") if isinstance(picture, Mapping) else None
    if not _is_list(given) or not any(_is_list(row) and row for row in given):
        return _note("an empty picture")
    if len(given) > MAX_SIDE or sum(_length(row) for row in given) > MAX_CELLS or max(map(_length, given)) > MAX_SIDE:
        return _note(f"a picture of {len(given)} x {max(map(_length, given))} cells: too large to draw")
    rows = [[_name(cell) for cell in row] if _is_list(row) else [_name(row)] for row in given]
    caption = _name(picture.get("caption") or "")
    width, height, shapes = _drawn([row for row in rows if row], caption)
    return _framed(width, height, shapes, _notes(caption, picture.get("info")), _title(rows, caption))


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _length(row: Any) -> int:
    return len(row) if _is_list(row) else 1


def _name(value: Any) -> str:
    if isinstance(value, str):
        return value[:MAX_CELL_TEXT]
    small = value is None or isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 256)
    return str(value) if small else type(value).__name__


def _drawn(rows: list[list[str]], caption: str) -> tuple[float, float, list[Shape]]:
    """A known board; a world where it holds known things, whatever else is in it; else a table of text."""
    if (board := choose_board(rows, caption)) is not None:
        return board(rows)
    return draw_gridworld(rows) if any(is_known_cell(name) for row in rows for name in row) else draw_table(rows)


def _notes(caption: str, info: Any) -> list[str]:
    """What stands below: the caption, then the environment's further words."""
    notes = [caption] if caption.strip() else []
    if isinstance(info, Mapping):
        pairs = list(info.items())[:MAX_NOTES]
        notes += [f"{_name(key)}: {_name(value)}" for key, value in pairs]
    return [to_single_line(note) for note in notes]


def _framed(width: float, height: float, shapes: Sequence[Shape], notes: Sequence[str], title: str) -> Drawing:
    """The board with its notes below, and a margin so that no pen is cut at the edge."""
    whole = max(width, NARROWEST) if notes else width
    columns = max(int(whole / (0.56 * NOTE_SIZE)), 12)
    lines = [line for note in notes for line in wrap(note, columns, 3)][:MAX_LINES]
    labels = [
        Label(x=0, y=height + 4 + NOTE_LINE * (number + 0.5), text=line, size=NOTE_SIZE, fill=NOTE_INK, anchor="start")
        for number, line in enumerate(lines)
    ]
    total = height + (4 + NOTE_LINE * len(lines) if lines else 0)
    return Drawing(width=whole, height=total, shapes=[*shapes, *labels], title=title, margin=MARGIN)


def _title(rows: Sequence[Sequence[str]], caption: str) -> str:
    """For those who do not see it: small boards cell by cell."""
    cells = "; ".join(" ".join(row) for row in rows)
    return clip(to_single_line(f"{caption}: {cells}" if caption else cells), 600)


def _note(text: str) -> Drawing:
    label = Label(x=8, y=14, text=text, size=NOTE_SIZE, fill=NOTE_INK, anchor="start")
    return Drawing(width=max(7.5 * len(text) + 16, NARROWEST), height=28, shapes=[label], title=text)


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
        return LETTER * max((display_width(line) for line in self.lines), default=1) + 2 * PADDING

    @property
    def height(self) -> float:
        return (MONO_LINE if self.mono else LINE) * len(self.lines) + PADDING


def draw_table(rows: CellRows) -> tuple[float, float, list[Shape]]:
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
        kept = show_invisible(cell[: BLOCK_COLUMNS * BLOCK_LINES]).strip("\n").expandtabs(4).split("\n")[:BLOCK_LINES]
        return _Text(lines=[clip(line, BLOCK_COLUMNS) for line in kept], mono=True)
    return _Text(lines=wrap(to_single_line(cell), COLUMNS, LINES), mono=False)


def _cell(text: _Text, x: float, y: float, width: float, height: float) -> list[Shape]:
    shapes: list[Shape] = [
        Rect(x=x + 0.5, y=y + 0.5, width=width - 1, height=height - 1, fill="#ffffff", stroke="#a3abb4", radius=4)
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
