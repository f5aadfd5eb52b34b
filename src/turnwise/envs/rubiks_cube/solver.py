"""Shortest solutions of the 2x2 cube, and cubes that are a given number of turns from solved.

To turn D is to turn U and then the whole cube, and how the cube is held does not matter. So U, R and F are enough, and
the corner of D, L and B stays where it is. Its colours say in which of the 24 ways the cube is held; renamed, they are
those of the solved cube, and all such cubes can be looked up in one table.
"""

from collections import deque
from functools import cache

from turnwise.envs.rubiks_cube.cube import HOLDS, MOVES, SOLVED, STICKERS, State, renamed

DEPTH = 6
"""Cubes within so many turns of solved are kept: 11,913 of the 3.7 million."""

STEPS = {name: move for name, move in MOVES.items() if name[0] in "URF"}
CORNER = [place for place, (corner, _) in enumerate(STICKERS) if corner == (-1, -1, -1)]
"""The places of the stickers of D, L and B's corner."""
HOME = {tuple(hold[place] for place in CORNER): dict(zip(hold, SOLVED, strict=True)) for hold in HOLDS}
"""colours of that corner -> names that make it the solved cube's"""


@cache
def rings() -> list[list[State]]:
    """At index n the cubes whose shortest solution has n turns, the corner of D, L and B as in the solved cube."""
    found, seen = [[SOLVED]], {SOLVED}
    for _ in range(DEPTH):
        ring = dict.fromkeys(move(state) for state in found[-1] for move in STEPS.values())  # a set that keeps order
        found.append([state for state in ring if state not in seen])
        seen.update(found[-1])
    return found


@cache
def distances() -> dict[State, int]:
    return {state: distance for distance, ring in enumerate(rings()) for state in ring}


def shortest_solution(state: State, *, longest: int) -> list[str] | None:
    """The fewest turns that solve the cube; None if these are more than `longest`."""
    start = renamed(state, HOME[tuple(state[place] for place in CORNER)])
    ways: dict[State, list[str]] = {start: []}
    queue = deque(ways)
    while queue:
        state = queue.popleft()
        if state in distances():  # the first that is found is nearest: all of the way before it lies outside
            solution = ways[state] + _way_home(state)
            return solution if len(solution) <= longest else None
        if len(ways[state]) + DEPTH < longest:
            for name, move in STEPS.items():
                if (after := move(state)) not in ways:
                    ways[after] = [*ways[state], name]
                    queue.append(after)
    return None


def _way_home(state: State) -> list[str]:
    """From ring to ring."""
    way: list[str] = []
    while distance := distances()[state]:
        name = next(name for name, move in STEPS.items() if distances().get(move(state)) == distance - 1)
        way.append(name)
        state = STEPS[name](state)
    return way
