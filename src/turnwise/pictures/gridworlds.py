"""Gridworlds such as Sokoban and FrozenLake: every known cell has its own drawing.

A function `_name(x, y, s)` draws one cell: the square of side `s` with the top left corner (x, y).
"""

from collections.abc import Callable, Sequence

from turnwise.pictures.shapes import Ellipse, Label, Point, Polygon, Polylines, Rect, Shape, SizedShapes
from turnwise.pictures.text import display_width, wrap

CellRows = Sequence[Sequence[str]]
DrawCell = Callable[[float, float, float], list[Shape]]

CELL = 40.0
DARK = "#20262d"
FLOOR, FLOOR_GRID = "#efe9df", "#d9d0c2"
ICE, ICE_GRID = "#dcedf8", "#aacde4"
BRICK, MORTAR = "#7c6f64", "#bfb3a6"
WOOD, WOOD_EDGE = "#d59a55", "#6f4518"
SOLVED, SOLVED_EDGE = "#1f8a5b", "#0d4a30"
MARK = "#b3402e"
CLOTHES, SKIN = "#2563a8", "#f3cfa8"
WATER, RIM = "#16324a", "#5d93b8"


def draw_gridworld(rows: CellRows) -> SizedShapes:
    """Draw the ground as one area with a grid, then the objects cell by cell."""
    width, height = CELL * max(map(len, rows)), CELL * len(rows)
    shapes = draw_ground(width, height, icy=is_icy(rows))
    for row_number, row in enumerate(rows):
        for column, name in enumerate(row):
            shapes += draw_cell(name, column * CELL, row_number * CELL)
    return width, height, shapes


def is_icy(rows: CellRows) -> bool:
    return any(name in ICY for row in rows for name in row)


def draw_ground(width: float, height: float, *, icy: bool) -> list[Shape]:
    ground = Rect(x=0, y=0, width=width, height=height, fill=ICE if icy else FLOOR)
    return [ground, _grid(width, height, ICE_GRID if icy else FLOOR_GRID)]


def is_known_cell(name: str) -> bool:
    return name in CELLS


def draw_cell(name: str, x: float, y: float) -> list[Shape]:
    draw = CELLS.get(name)
    return draw_named_cell(name, x, y, CELL) if draw is None else draw(x, y, CELL)


def draw_named_cell(name: str, x: float, y: float, s: float) -> list[Shape]:
    """Draw the name of an unknown cell in a box."""
    lines = wrap(name.replace("_", " "), 8, 2)
    size = min(0.4 * s, 0.84 * s / max(0.62 * max(map(display_width, lines)), 1))
    frame = Rect(x=x + 2, y=y + 2, width=s - 4, height=s - 4, fill="#ffffff", stroke=DARK, thickness=1.2, radius=4)
    middles = [y + s / 2 + 1.1 * size * (number - (len(lines) - 1) / 2) for number in range(len(lines))]
    labels = [
        Label(x=x + s / 2, y=middle, text=line, size=size, fill=DARK)
        for middle, line in zip(middles, lines, strict=True)
    ]
    return [frame, *labels]


def _grid(width: float, height: float, colour: str) -> Polylines:
    down = tuple(((CELL * i, 0.0), (CELL * i, height)) for i in range(round(width / CELL) + 1))
    across = tuple(((0.0, CELL * i), (width, CELL * i)) for i in range(round(height / CELL) + 1))
    return Polylines(paths=down + across, stroke=colour)


def _points(x: float, y: float, s: float, *fractions: Point) -> tuple[Point, ...]:
    """Convert positions in the cell, given as fractions from 0 to 1, to positions in the drawing."""
    return tuple((x + s * across, y + s * down) for across, down in fractions)


def _empty(x: float, y: float, s: float) -> list[Shape]:
    return []


def _wall(x: float, y: float, s: float) -> list[Shape]:
    third = 1 / 3
    joints = (
        _points(x, y, s, (0, third), (1, third)),
        _points(x, y, s, (0, 2 * third), (1, 2 * third)),
        _points(x, y, s, (0, 0), (1, 0)),
        _points(x, y, s, (0.5, 0), (0.5, third)),
        _points(x, y, s, (0.2, third), (0.2, 2 * third)),
        _points(x, y, s, (0.8, third), (0.8, 2 * third)),
        _points(x, y, s, (0.5, 2 * third), (0.5, 1)),
    )
    return [Rect(x=x, y=y, width=s, height=s, fill=BRICK), Polylines(paths=joints, stroke=MORTAR, thickness=1.4)]


def _ring(x: float, y: float, s: float, radius: float) -> Ellipse:
    return Ellipse(x=x + s / 2, y=y + s / 2, rx=radius * s, ry=radius * s, stroke=MARK, thickness=0.07 * s)


def _target(x: float, y: float, s: float) -> list[Shape]:
    dot = Ellipse(x=x + s / 2, y=y + s / 2, rx=0.09 * s, ry=0.09 * s, fill=MARK)
    return [_ring(x, y, s, 0.27), dot]


def _crate(x: float, y: float, s: float, fill: str, edge: str) -> Rect:
    inset = 0.12 * s
    side = s - 2 * inset
    return Rect(
        x=x + inset, y=y + inset, width=side, height=side, fill=fill, stroke=edge, thickness=0.07 * s, radius=0.06 * s
    )


def _box(x: float, y: float, s: float) -> list[Shape]:
    cross = (_points(x, y, s, (0.2, 0.2), (0.8, 0.8)), _points(x, y, s, (0.8, 0.2), (0.2, 0.8)))
    return [_crate(x, y, s, WOOD, WOOD_EDGE), Polylines(paths=cross, stroke=WOOD_EDGE, thickness=0.06 * s)]


def _box_on_target(x: float, y: float, s: float) -> list[Shape]:
    tick = (_points(x, y, s, (0.28, 0.52), (0.44, 0.69), (0.73, 0.33)),)
    return [_crate(x, y, s, SOLVED, SOLVED_EDGE), Polylines(paths=tick, stroke="#ffffff", thickness=0.1 * s)]


def _player(x: float, y: float, s: float) -> list[Shape]:
    body = _points(x, y, s, (0.26, 0.88), (0.31, 0.55), (0.42, 0.46), (0.58, 0.46), (0.69, 0.55), (0.74, 0.88))
    head = Ellipse(x=x + s / 2, y=y + 0.29 * s, rx=0.17 * s, ry=0.17 * s, fill=SKIN, stroke=DARK, thickness=0.045 * s)
    return [Polygon(points=body, fill=CLOTHES, stroke=DARK, thickness=0.045 * s), head]


def _player_on_target(x: float, y: float, s: float) -> list[Shape]:
    return [_ring(x, y, s, 0.43), *_player(x, y, s)]


def _ice(x: float, y: float, s: float) -> list[Shape]:
    glints = (_points(x, y, s, (0.2, 0.38), (0.38, 0.2)), _points(x, y, s, (0.62, 0.82), (0.82, 0.62)))
    return [Polylines(paths=glints, stroke="#ffffff", thickness=0.06 * s)]


def _hole(x: float, y: float, s: float) -> list[Shape]:
    water = Ellipse(x=x + s / 2, y=y + s / 2, rx=0.4 * s, ry=0.36 * s, fill=WATER, stroke=RIM, thickness=0.07 * s)
    waves = tuple(
        _points(x, y, s, (0.3, down), (0.4, down - 0.06), (0.5, down), (0.6, down - 0.06), (0.7, down))
        for down in (0.44, 0.62)
    )
    return [water, Polylines(paths=waves, stroke=RIM, thickness=0.05 * s)]


def _flag(x: float, y: float, s: float) -> list[Shape]:
    cloth = _points(x, y, s, (0.36, 0.14), (0.8, 0.29), (0.36, 0.46))
    pole = (_points(x, y, s, (0.34, 0.12), (0.34, 0.86)), _points(x, y, s, (0.2, 0.87), (0.54, 0.87)))
    return [
        Polygon(points=cloth, fill=MARK, stroke=DARK, thickness=0.03 * s),
        Polylines(paths=pole, stroke=DARK, thickness=0.07 * s),
    ]


def _player_on_goal(x: float, y: float, s: float) -> list[Shape]:
    """Draw the player in front of the flag."""
    return [*_flag(x - 0.14 * s, y, s), *_player(x + 0.17 * s, y + 0.17 * s, 0.8 * s)]


def _player_in_hole(x: float, y: float, s: float) -> list[Shape]:
    """Draw a head and two arms above the water, crossed out."""
    arms = (_points(x, y, s, (0.3, 0.62), (0.2, 0.34)), _points(x, y, s, (0.7, 0.62), (0.8, 0.34)))
    head = Ellipse(x=x + s / 2, y=y + s / 2, rx=0.15 * s, ry=0.15 * s, fill=SKIN, stroke=DARK, thickness=0.04 * s)
    cross = (_points(x, y, s, (0.08, 0.08), (0.92, 0.92)), _points(x, y, s, (0.92, 0.08), (0.08, 0.92)))
    return [
        *_hole(x, y, s)[:1],
        Polylines(paths=arms, stroke=SKIN, thickness=0.09 * s),
        head,
        Polylines(paths=cross, stroke=MARK, thickness=0.07 * s),
    ]


CELLS: dict[str, DrawCell] = {
    "empty": _empty,
    "wall": _wall,
    "target": _target,
    "box": _box,
    "box_on_target": _box_on_target,
    "player": _player,
    "player_on_target": _player_on_target,
    "ice": _ice,
    "hole": _hole,
    "goal": _flag,
    "player_on_goal": _player_on_goal,
    "player_in_hole": _player_in_hole,
}
ICY = frozenset({"ice", "hole", "player_in_hole"})
