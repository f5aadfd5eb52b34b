"""The picture of an environment's state: a grid of named cells, drawn as a board, a gridworld or a table.

A stored picture is {"rows": [[cell name, ...], ...], "caption": text, "info": {name: text}}. It is untrusted: whatever
it holds, the drawing is small and harmless. Its "html", if it has any, is shown by the viewer alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from turnwise.pictures.boards import choose_board
from turnwise.pictures.gridworlds import DARK, CellRows, draw_gridworld, is_known_cell
from turnwise.pictures.shapes import Drawing, Label, Rect, Shape, SizedShapes, drawing_to_svg
from turnwise.pictures.text import clip, display_width, show_invisible, to_single_line, wrap

MAX_CELLS, MAX_SIDE = 1024, 128
"""Larger pictures are not drawn: they would be unreadable and slow a page down."""
MAX_CELL_TEXT = 8000
MAX_NOTES, MAX_NOTE_LINES = 8, 6
MARGIN, NOTE_LINE, NOTE_SIZE = 2.0, 18.0, 13.0
NOTE_INK = "#757d87"
"""Readable on light and on dark pages."""
MIN_WIDTH = 150.0
"""Minimum width of a picture with notes."""

TEXT_SIZE, LINE_HEIGHT = 14.0, 18.0
MONO_LINE_HEIGHT = 16.0
"""Small enough for box-drawing characters to join."""
COLUMN_WIDTH = 0.6 * TEXT_SIZE
PADDING = 10.0
GAP = 4.0
MAX_CELL_COLUMNS, MAX_CELL_LINES = 28, 6
MAX_BLOCK_COLUMNS, MAX_BLOCK_LINES = 120, 60
"""Limits of a cell that is a block of several lines."""


def draw_picture_svg(picture: Mapping[str, Any]) -> str:
    """Return self-contained SVG without scripts and external references."""
    return drawing_to_svg(draw_picture(picture))


def is_only_html(picture: Mapping[str, Any]) -> bool:
    """Return whether there is nothing to draw, because the state is HTML."""
    return bool(picture.get("html")) and not picture.get("rows")


def draw_picture(picture: Mapping[str, Any]) -> Drawing:
    cells = picture.get("rows") if isinstance(picture, Mapping) else None
    if not _is_list(cells) or not any(_is_list(row) and row for row in cells):
        return _draw_note("empty picture")
    if len(cells) > MAX_SIDE or sum(_length(row) for row in cells) > MAX_CELLS or max(map(_length, cells)) > MAX_SIDE:
        return _draw_note(f"{len(cells)} x {max(map(_length, cells))} cells, too large to draw")
    rows = [[_name(cell) for cell in row] if _is_list(row) else [_name(row)] for row in cells]
    caption = _name(picture.get("caption") or "")
    width, height, shapes = draw_cells([row for row in rows if row], caption)
    return _add_notes(width, height, shapes, _notes(caption, picture.get("info")), _title(rows, caption))


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _length(row: Any) -> int:
    return len(row) if _is_list(row) else 1


def _name(value: Any) -> str:
    if isinstance(value, str):
        return value[:MAX_CELL_TEXT]
    small = value is None or isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 256)
    return str(value) if small else type(value).__name__


def draw_cells(rows: list[list[str]], caption: str) -> SizedShapes:
    """Draw a known board; a gridworld if any cell is known; else a table of text."""
    if (board := choose_board(rows, caption)) is not None:
        return board(rows)
    return draw_gridworld(rows) if _has_known_cell(rows) else draw_table(rows)


def is_gridworld(rows: CellRows, caption: str) -> bool:
    """Return whether `draw_cells` draws these cells as a gridworld."""
    return choose_board(rows, caption) is None and _has_known_cell(rows)


def _has_known_cell(rows: CellRows) -> bool:
    return any(is_known_cell(name) for row in rows for name in row)


def _notes(caption: str, info: Any) -> list[str]:
    """Return the lines below the picture: the caption, then the environment's info."""
    notes = [caption] if caption.strip() else []
    if isinstance(info, Mapping):
        pairs = list(info.items())[:MAX_NOTES]
        notes += [f"{_name(key)}: {_name(value)}" for key, value in pairs]
    return [to_single_line(note) for note in notes]


def _add_notes(width: float, height: float, shapes: Sequence[Shape], notes: Sequence[str], title: str) -> Drawing:
    """Add the notes below the picture, and a margin so that no stroke is cut off."""
    total_width = max(width, MIN_WIDTH) if notes else width
    columns = max(int(total_width / (0.56 * NOTE_SIZE)), 12)
    lines = [line for note in notes for line in wrap(note, columns, 3)][:MAX_NOTE_LINES]
    labels = [
        Label(x=0, y=height + 4 + NOTE_LINE * (number + 0.5), text=line, size=NOTE_SIZE, fill=NOTE_INK, anchor="start")
        for number, line in enumerate(lines)
    ]
    total_height = height + (4 + NOTE_LINE * len(lines) if lines else 0)
    return Drawing(width=total_width, height=total_height, shapes=[*shapes, *labels], title=title, margin=MARGIN)


def _title(rows: Sequence[Sequence[str]], caption: str) -> str:
    """Return the text for screen readers, cell by cell."""
    cells = "; ".join(" ".join(row) for row in rows)
    return clip(to_single_line(f"{caption}: {cells}" if caption else cells), 600)


def _draw_note(text: str) -> Drawing:
    label = Label(x=8, y=14, text=text, size=NOTE_SIZE, fill=NOTE_INK, anchor="start")
    return Drawing(width=max(7.5 * len(text) + 16, MIN_WIDTH), height=28, shapes=[label], title=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellText:
    lines: list[str]
    mono: bool

    @property
    def width(self) -> float:
        return COLUMN_WIDTH * max((display_width(line) for line in self.lines), default=1) + 2 * PADDING

    @property
    def height(self) -> float:
        return (MONO_LINE_HEIGHT if self.mono else LINE_HEIGHT) * len(self.lines) + PADDING


def draw_table(rows: CellRows) -> SizedShapes:
    texts = [[_layout_text(cell) for cell in row] for row in rows]
    widths = [max(row[column].width for row in texts if column < len(row)) for column in range(max(map(len, texts)))]
    shapes: list[Shape] = []
    y = 0.0
    for row in texts:
        height = max((text.height for text in row), default=0.0)
        x = 0.0
        for text, width in zip(row, widths, strict=False):
            shapes += _draw_cell(text, x, y, width, height)
            x += width + GAP
        y += height + GAP
    return sum(widths) + GAP * (len(widths) - 1), y - GAP, shapes


def _layout_text(cell: str) -> CellText:
    """Keep a block of several lines as it is, in monospace; wrap any other text."""
    if "\n" in cell.strip():
        kept = (
            show_invisible(cell[: MAX_BLOCK_COLUMNS * MAX_BLOCK_LINES])
            .strip("\n")
            .expandtabs(4)
            .split("\n")[:MAX_BLOCK_LINES]
        )
        return CellText(lines=[clip(line, MAX_BLOCK_COLUMNS) for line in kept], mono=True)
    return CellText(lines=wrap(to_single_line(cell), MAX_CELL_COLUMNS, MAX_CELL_LINES), mono=False)


def _draw_cell(text: CellText, x: float, y: float, width: float, height: float) -> list[Shape]:
    shapes: list[Shape] = [
        Rect(x=x + 0.5, y=y + 0.5, width=width - 1, height=height - 1, fill="#ffffff", stroke="#a3abb4", radius=4)
    ]
    pitch = MONO_LINE_HEIGHT if text.mono else LINE_HEIGHT
    top = y + (height - pitch * len(text.lines)) / 2 + pitch / 2
    for number, line in enumerate(text.lines):
        middle = top + pitch * number
        if text.mono:
            shapes.append(
                Label(x=x + PADDING, y=middle, text=line, size=TEXT_SIZE, fill=DARK, anchor="start", mono=True)
            )
        elif line:
            shapes.append(Label(x=x + width / 2, y=middle, text=line, size=TEXT_SIZE, fill=DARK))
    return shapes
