"""Boards of games and puzzles: 2048, sudoku, the unfolded Rubik's cube, tic-tac-toe, connect four."""

from collections.abc import Callable, Sequence
from math import isqrt

from turnwise.pictures.gridworlds import CELL, DARK, CellRows
from turnwise.pictures.shapes import Ellipse, Label, Polylines, Rect, Shape, SizedShapes

EMPTY, YOU, OPPONENT = "empty", "you", "opponent"
FAINT = "#8b939c"
YOU_COLOUR, OPPONENT_COLOUR = "#f0c243", "#c8452f"
TILES = ("#f1ead8", "#ecdcb4", "#f0c987", "#eeb067", "#e8934b", "#dd7433", "#c95a26", "#a9481f", "#86391c", "#642c18")
"""From 2 upwards, each darker than the one before, so that the order shows without colour."""
STICKERS = {
    "white": ("#ffffff", "W"),
    "yellow": ("#f7dc3c", "Y"),
    "orange": ("#f08a24", "O"),
    "red": ("#c8332b", "R"),
    "green": ("#2f9a57", "G"),
    "blue": ("#2b62b8", "B"),
}
LIGHT_TEXT = ("red", "green", "blue")


def choose_board(rows: CellRows, caption: str) -> Callable[[CellRows], SizedShapes] | None:
    """Return the function that draws the board with these cells, or None if they are not a known board."""
    names = {name for row in rows for name in row}
    if len({len(row) for row in rows}) != 1:
        return None
    if names & set(STICKERS) and names <= {EMPTY, *STICKERS}:
        return draw_cube
    if names != {EMPTY} and all(name in (EMPTY, YOU, OPPONENT) or _parse_number(name) for name in names):
        return _choose_number_board(rows, names, caption)
    return None


def _choose_number_board(rows: CellRows, names: set[str], caption: str) -> Callable[[CellRows], SizedShapes] | None:
    height, width = len(rows), len(rows[0])
    if (height, width) == (3, 3) and (names & {YOU, OPPONENT} or rows[0][0] == "1"):
        return draw_tic_tac_toe
    if names & {YOU, OPPONENT} or _is_new_connect_four(rows):
        return draw_connect_four
    numbers = {_parse_number(name) for name in names - {EMPTY}}
    if height == width and caption.startswith("Score") and all(number.bit_count() == 1 for number in numbers):
        return draw_2048
    if height == width and height in (4, 9, 16) and all(number <= height for number in numbers) and numbers:
        return draw_sudoku
    return None


def _parse_number(name: str) -> int:
    """Return the number, or 0 for any other text."""
    return int(name) if name.isascii() and name.isdigit() and len(name) < 12 else 0


def _is_new_connect_four(rows: CellRows) -> bool:
    """Return whether every column can be played, in the lowest row: connect four before the first move."""
    lowest = [str(number) for number in range(1, len(rows[0]) + 1)]
    return len(rows) > 3 and list(rows[-1]) == lowest and all(set(row) == {EMPTY} for row in rows[:-1])


def _iter_cells(rows: CellRows) -> list[tuple[str, float, float]]:
    """Return each cell's name and the x and y of its top left corner."""
    return [(name, column * CELL, row * CELL) for row, names in enumerate(rows) for column, name in enumerate(names)]


def _size(rows: CellRows) -> tuple[float, float]:
    return CELL * len(rows[0]), CELL * len(rows)


def draw_2048(rows: CellRows) -> SizedShapes:
    width, height = _size(rows)
    shapes: list[Shape] = [Rect(x=0, y=0, width=width, height=height, fill="#b3a798", radius=5)]
    for name, x, y in _iter_cells(rows):
        power = 0 if name == EMPTY else _parse_number(name).bit_length() - 1
        fill = "#c9bfb1" if not power else TILES[min(power, len(TILES)) - 1]
        shapes.append(Rect(x=x + 2.5, y=y + 2.5, width=CELL - 5, height=CELL - 5, fill=fill, radius=4))
        if power:
            ink = "#ffffff" if power > 5 else DARK
            shapes.append(_label(name, x, y, min(0.45, 1.15 / len(name)), ink, bold=True))
    return width, height, shapes


def draw_sudoku(rows: CellRows) -> SizedShapes:
    width, height = _size(rows)
    box = isqrt(len(rows))
    edges = range(len(rows) + 1)
    thin = [edge for edge in edges if edge % box]
    thick = [edge for edge in edges if edge % box == 0]
    shapes: list[Shape] = [
        Rect(x=0, y=0, width=width, height=height, fill="#ffffff"),
        _rules(thin, width, "#b6bcc3", 1.0),
        _rules(thick, width, DARK, 2.4),
    ]
    shapes += [_label(name, x, y, 0.55, DARK) for name, x, y in _iter_cells(rows) if name != EMPTY]
    return width, height, shapes


def _rules(edges: Sequence[int], side: float, colour: str, thickness: float) -> Polylines:
    down = tuple(((CELL * edge, 0.0), (CELL * edge, side)) for edge in edges)
    across = tuple(((0.0, CELL * edge), (side, CELL * edge)) for edge in edges)
    return Polylines(paths=down + across, stroke=colour, thickness=thickness)


def draw_cube(rows: CellRows) -> SizedShapes:
    """Draw each sticker with its colour's letter, for readers who cannot distinguish the colours."""
    width, height = _size(rows)
    shapes: list[Shape] = []
    for name, x, y in _iter_cells(rows):
        if name != EMPTY:
            fill, letter = STICKERS[name]
            side = CELL - 3
            shapes.append(
                Rect(x=x + 1.5, y=y + 1.5, width=side, height=side, fill=fill, stroke=DARK, thickness=1.8, radius=4)
            )
            shapes.append(_label(letter, x, y, 0.42, "#ffffff" if name in LIGHT_TEXT else DARK, bold=True))
    return width, height, shapes


def draw_tic_tac_toe(rows: CellRows) -> SizedShapes:
    width, height = _size(rows)
    inner = tuple(((CELL * i, 3.0), (CELL * i, height - 3)) for i in (1, 2))
    across = tuple(((3.0, CELL * i), (width - 3, CELL * i)) for i in (1, 2))
    shapes: list[Shape] = [
        Rect(x=0, y=0, width=width, height=height, fill="#ffffff", radius=5),
        Polylines(paths=inner + across, stroke=DARK, thickness=2.2),
    ]
    for name, x, y in _iter_cells(rows):
        shapes += _draw_mark(name, x, y, "#2563a8", OPPONENT_COLOUR, 0.28, 4.2)
    return width, height, shapes


def draw_connect_four(rows: CellRows) -> SizedShapes:
    width, height = _size(rows)
    shapes: list[Shape] = [Rect(x=0, y=0, width=width, height=height, fill="#2c5aa0", radius=6)]
    for name, x, y in _iter_cells(rows):
        fill = {YOU: YOU_COLOUR, OPPONENT: OPPONENT_COLOUR}.get(name, "#eef2f7")
        radius = 0.4 * CELL
        shapes.append(Ellipse(x=x + CELL / 2, y=y + CELL / 2, rx=radius, ry=radius, fill=fill))
        shapes += _draw_mark(name, x, y, DARK, "#ffffff", 0.17, 3.0)
    return width, height, shapes


def _draw_mark(
    name: str, x: float, y: float, you_colour: str, opponent_colour: str, radius: float, thickness: float
) -> list[Shape]:
    """Draw an X for the agent, an O for its opponent, or the faint number of a legal move."""
    middle_x, middle_y, r = x + CELL / 2, y + CELL / 2, radius * CELL
    if name == YOU:
        falling = ((middle_x - r, middle_y - r), (middle_x + r, middle_y + r))
        rising = ((middle_x - r, middle_y + r), (middle_x + r, middle_y - r))
        return [Polylines(paths=(falling, rising), stroke=you_colour, thickness=thickness)]
    if name == OPPONENT:
        return [Ellipse(x=middle_x, y=middle_y, rx=r, ry=r, stroke=opponent_colour, thickness=thickness)]
    return [] if name == EMPTY else [_label(name, x, y, 0.32, FAINT)]


def _label(text: str, x: float, y: float, size: float, fill: str, *, bold: bool = False) -> Label:
    return Label(x=x + CELL / 2, y=y + CELL / 2, text=text, size=size * CELL, fill=fill, bold=bold)
