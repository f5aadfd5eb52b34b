"""The 2x2 cube: where its stickers are and what a turn of a face does to them.

A state lists 24 colours: the faces in the order of `FACES`, each row by row as one sees it from outside, with the faces
as they lie in the unfolded cube:

      U
    L F R B
      D
"""

from collections.abc import Mapping
from operator import itemgetter

State = tuple[str, ...]
Vector = tuple[int, ...]

FACES: dict[str, tuple[Vector, Vector, Vector]] = {
    "U": ((0, 1, 0), (1, 0, 0), (0, 0, 1)),
    "D": ((0, -1, 0), (1, 0, 0), (0, 0, -1)),
    "L": ((-1, 0, 0), (0, 0, 1), (0, -1, 0)),
    "R": ((1, 0, 0), (0, 0, -1), (0, -1, 0)),
    "F": ((0, 0, 1), (1, 0, 0), (0, -1, 0)),
    "B": ((0, 0, -1), (-1, 0, 0), (0, -1, 0)),
}
"""face -> (where it looks, where its right is, where its bottom is); x to the right, y up, z to the front"""

STICKERS: list[tuple[Vector, Vector]] = [
    (tuple(x + side * y + height * z for x, y, z in zip(look, right, bottom, strict=True)), look)
    for look, right, bottom in FACES.values()
    for height in (-1, 1)
    for side in (-1, 1)
]
"""(the corner that it is on, where it looks), in the order of a state"""

COLOURS = ("white", "yellow", "orange", "red", "green", "blue")
SOLVED: State = tuple(colour for colour in COLOURS for _ in range(4))
"""As one usually holds it: white on U, green on F."""


def _along(vector: Vector, axis: Vector) -> int:
    return sum(a * b for a, b in zip(vector, axis, strict=True))


def _turned(vector: Vector, axis: Vector) -> Vector:
    """After a quarter turn around the axis, clockwise for someone whom the axis points at."""
    (a, b, c), (x, y, z) = vector, axis
    across = (b * z - c * y, c * x - a * z, a * y - b * x)
    return tuple(_along(vector, axis) * keep + part for keep, part in zip(axis, across, strict=True))


def _sources(face: str, quarters: int) -> list[int]:
    """For each place of a state, the place from which a turn of this face brings its sticker."""
    axis = FACES[face][0]
    sources = list(range(len(STICKERS)))
    for place, (corner, look) in enumerate(STICKERS):
        if _along(corner, axis) == 1:
            for _ in range(quarters):
                corner, look = _turned(corner, axis), _turned(look, axis)
            sources[STICKERS.index((corner, look))] = place
    return sources


MOVES = {
    f"{face}{mark}": itemgetter(*_sources(face, quarters)) for face in FACES for mark, quarters in (("", 1), ("'", 3))
}
"""name -> the state before to the state after; a quarter turn of a face, clockwise or, with ', the other way"""


def after(state: State, *moves: str) -> State:
    for move in moves:
        state = MOVES[move](state)
    return state


def is_solved(state: State) -> bool:
    """Whether each face has one colour, however the cube is held."""
    return all(state[place : place + 4].count(state[place]) == 4 for place in range(0, len(state), 4))


def renamed(state: State, names: Mapping[str, str]) -> State:
    """With other colours. A move does not ask for colours: what solves the one cube solves the other."""
    return tuple(map(names.__getitem__, state))


def _holds() -> list[State]:
    holds = [SOLVED]
    for hold in holds:  # grows while we walk it, until turning the whole cube gives nothing new
        for both_layers in (("U", "D'"), ("R", "L'")):
            if (other := after(hold, *both_layers)) not in holds:
                holds.append(other)
    return holds


HOLDS: list[State] = _holds()
"""The solved cube in the 24 ways to hold it."""
