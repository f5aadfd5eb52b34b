"""The 2x2 cube: face turns, shortest solutions, and scrambles of an exact depth.

A state lists 24 colours: the faces in the order of `FACES`, each row by row as seen from outside, with the faces as in
the unfolded cube:

      U
    L F R B
      D
"""

import random
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from operator import itemgetter

from turnwise.envs.shortest_path import search_path

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
"""face -> (normal, direction of its right, direction of its bottom); x points right, y up, z to the front"""

STICKERS: list[tuple[Vector, Vector]] = [
    (tuple(x + side * y + height * z for x, y, z in zip(normal, right, bottom, strict=True)), normal)
    for normal, right, bottom in FACES.values()
    for height in (-1, 1)
    for side in (-1, 1)
]
"""(corner of the sticker, normal of its face) in the order of a state"""

COLOURS = ("white", "yellow", "orange", "red", "green", "blue")
SOLVED: CubeState = tuple(colour for colour in COLOURS for _ in range(4))
"""In the usual orientation: white on U, green on F."""


def _dot(vector: Vector, axis: Vector) -> int:
    return sum(a * b for a, b in zip(vector, axis, strict=True))


def _rotate(vector: Vector, axis: Vector) -> Vector:
    """Rotate by a quarter turn around the axis, clockwise as seen from outside."""
    (a, b, c), (x, y, z) = vector, axis
    cross = (b * z - c * y, c * x - a * z, a * y - b * x)
    return tuple(_dot(vector, axis) * along + across for along, across in zip(axis, cross, strict=True))


def _permutation(face: str, quarter_turns: int) -> list[int]:
    """For each index of the new state, the index in the old state that its sticker comes from."""
    axis = FACES[face][0]
    sources = list(range(len(STICKERS)))
    for index, (corner, normal) in enumerate(STICKERS):
        if _dot(corner, axis) == 1:
            for _ in range(quarter_turns):
                corner, normal = _rotate(corner, axis), _rotate(normal, axis)
            sources[STICKERS.index((corner, normal))] = index
    return sources


MOVES = {
    f"{face}{mark}": itemgetter(*_permutation(face, quarter_turns))
    for face in FACES
    for mark, quarter_turns in (("", 1), ("'", 3))
}
"""move -> function from the old state to the new one; a quarter turn of a face, clockwise or, with ', the other way"""


def turn_faces(state: CubeState, *moves: str) -> CubeState:
    for move in moves:
        state = MOVES[move](state)
    return state


def is_solved(state: CubeState) -> bool:
    """Return whether each face has one colour, in any orientation of the cube."""
    return all(state[start : start + 4].count(state[start]) == 4 for start in range(0, len(state), 4))


def recolour(state: CubeState, colours: Mapping[str, str]) -> CubeState:
    """Replace the colours. Moves ignore colours, so both cubes have the same solutions."""
    return tuple(map(colours.__getitem__, state))


def _orientations() -> list[CubeState]:
    rotations = [SOLVED]
    for state in rotations:  # grows during the loop, until rotating the whole cube gives nothing new
        for both_layers in (("U", "D'"), ("R", "L'")):
            if (rotated := turn_faces(state, *both_layers)) not in rotations:
                rotations.append(rotated)
    return rotations


ORIENTATIONS: list[CubeState] = _orientations()
"""The solved cube in its 24 orientations."""

# Turning D is the same as turning U and then the whole cube, and the orientation of the cube does not matter. So the
# moves of U, R and F are enough, and the corner of D, L and B never moves. The colours of that corner identify the
# orientation; recoloured to those of the solved cube, all orientations share one table of distances.

MAX_DEPTH = 6
"""Depth of the distance table: 11,913 of the 3.7 million states."""

SOLVER_MOVES = {name: move for name, move in MOVES.items() if name[0] in "URF"}
FIXED_CORNER = [index for index, (corner, _) in enumerate(STICKERS) if corner == (-1, -1, -1)]
"""Indices of the stickers on the corner of D, L and B."""
TO_STANDARD = {
    tuple(orientation[index] for index in FIXED_CORNER): dict(zip(orientation, SOLVED, strict=True))
    for orientation in ORIENTATIONS
}
"""colours of the fixed corner -> recolouring to the usual orientation"""


@cache
def cubes_by_distance() -> list[list[CubeState]]:
    """At index n, the cubes in the usual orientation whose shortest solution has n moves."""
    by_distance, seen = [[SOLVED]], {SOLVED}
    for _ in range(MAX_DEPTH):
        # a dict is an ordered set
        reached = dict.fromkeys(move(state) for state in by_distance[-1] for move in SOLVER_MOVES.values())
        by_distance.append([state for state in reached if state not in seen])
        seen.update(by_distance[-1])
    return by_distance


@cache
def distances() -> dict[CubeState, int]:
    return {state: distance for distance, states in enumerate(cubes_by_distance()) for state in states}


def shortest_solution(state: CubeState, *, max_moves: int) -> list[str] | None:
    """Find the shortest solution; None if it has more than `max_moves` moves.

    Breadth-first search up to the first state of the distance table. That state is on a shortest solution, because all
    states before it are outside of the table.
    """
    start = recolour(state, TO_STANDARD[tuple(state[index] for index in FIXED_CORNER)])

    def successors(state: CubeState) -> Iterator[tuple[str, CubeState]]:
        return ((name, move(state)) for name, move in SOLVER_MOVES.items())

    path = search_path(start, successors, distances().__contains__, max(0, max_moves - MAX_DEPTH))
    if path is None:
        return None
    solution = path + _descend(reduce(lambda state, name: SOLVER_MOVES[name](state), path, start))
    return solution if len(solution) <= max_moves else None


def _descend(state: CubeState) -> list[str]:
    """Solve a cube of the distance table by moves that each reduce the distance."""
    moves: list[str] = []
    while distance := distances()[state]:
        name = next(name for name, move in SOLVER_MOVES.items() if distances().get(move(state)) == distance - 1)
        moves.append(name)
        state = SOLVER_MOVES[name](state)
    return moves


def scramble(rng: random.Random, *, depth: int) -> CubeState:
    """Draw uniformly from the cubes exactly `depth` moves from solved, in a random orientation.

    `depth` random moves would often end closer to solved.
    """
    return recolour(rng.choice(cubes_by_distance()[depth]), dict(zip(SOLVED, rng.choice(ORIENTATIONS), strict=True)))
