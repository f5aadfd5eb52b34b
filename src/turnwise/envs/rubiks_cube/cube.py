"""The 2x2 cube: where its stickers are and what a turn of a face does to them.

A state lists 24 colours: the faces in the order of `FACES`, each row by row as one sees it from outside, with the faces
as they lie in the unfolded cube:

      U
    L F R B
      D
"""

import random
from collections import deque
from collections.abc import Mapping
from functools import cache
from operator import itemgetter

CubeState = tuple[str, ...]
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
SOLVED: CubeState = tuple(colour for colour in COLOURS for _ in range(4))
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


def turn_faces(state: CubeState, *moves: str) -> CubeState:
    for move in moves:
        state = MOVES[move](state)
    return state


def is_solved(state: CubeState) -> bool:
    """Whether each face has one colour, however the cube is held."""
    return all(state[place : place + 4].count(state[place]) == 4 for place in range(0, len(state), 4))


def recolor(state: CubeState, names: Mapping[str, str]) -> CubeState:
    """With other colours. A move does not ask for colours: what solves the one cube solves the other."""
    return tuple(map(names.__getitem__, state))


def _holds() -> list[CubeState]:
    holds = [SOLVED]
    for hold in holds:  # grows while we walk it, until turning the whole cube gives nothing new
        for both_layers in (("U", "D'"), ("R", "L'")):
            if (other := turn_faces(hold, *both_layers)) not in holds:
                holds.append(other)
    return holds


ORIENTATIONS: list[CubeState] = _holds()
"""The solved cube in the 24 ways to hold it."""


MAX_DEPTH = 6
"""Cubes within so many turns of solved are kept: 11,913 of the 3.7 million."""

STEPS = {name: move for name, move in MOVES.items() if name[0] in "URF"}
CORNER = [place for place, (corner, _) in enumerate(STICKERS) if corner == (-1, -1, -1)]
"""The places of the stickers of D, L and B's corner."""
HOME = {tuple(hold[place] for place in CORNER): dict(zip(hold, SOLVED, strict=True)) for hold in ORIENTATIONS}
"""colours of that corner -> names that make it the solved cube's"""


@cache
def cubes_by_distance() -> list[list[CubeState]]:
    """At index n the cubes whose shortest solution has n turns, the corner of D, L and B as in the solved cube."""
    found, seen = [[SOLVED]], {SOLVED}
    for _ in range(MAX_DEPTH):
        ring = dict.fromkeys(move(state) for state in found[-1] for move in STEPS.values())  # a set that keeps order
        found.append([state for state in ring if state not in seen])
        seen.update(found[-1])
    return found


@cache
def distances() -> dict[CubeState, int]:
    return {state: distance for distance, ring in enumerate(cubes_by_distance()) for state in ring}


def shortest_solution(state: CubeState, *, longest: int) -> list[str] | None:
    """The fewest turns that solve the cube; None if these are more than `longest`."""
    start = recolor(state, HOME[tuple(state[place] for place in CORNER)])
    ways: dict[CubeState, list[str]] = {start: []}
    queue = deque(ways)
    while queue:
        state = queue.popleft()
        if state in distances():  # the first that is found is nearest: all of the way before it lies outside
            solution = ways[state] + _way_home(state)
            return solution if len(solution) <= longest else None
        if len(ways[state]) + MAX_DEPTH < longest:
            for name, move in STEPS.items():
                if (turn_faces := move(state)) not in ways:
                    ways[turn_faces] = [*ways[state], name]
                    queue.append(turn_faces)
    return None


def _way_home(state: CubeState) -> list[str]:
    """From ring to ring."""
    way: list[str] = []
    while distance := distances()[state]:
        name = next(name for name, move in STEPS.items() if distances().get(move(state)) == distance - 1)
        way.append(name)
        state = STEPS[name](state)
    return way


def scramble(rng: random.Random, *, depth: int) -> CubeState:
    """Any of the cubes `depth` turns from solved, in any of the 24 ways to hold it, all equally likely.

    So many random turns would often end nearer to solved: the depth would say little.
    """
    return recolor(rng.choice(cubes_by_distance()[depth]), dict(zip(SOLVED, rng.choice(ORIENTATIONS), strict=True)))
