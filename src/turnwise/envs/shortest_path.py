"""Breadth-first search for the fewest moves, shared by environments that know their own solution."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

State = TypeVar("State", bound=Hashable)


def search_path(
    start: State,
    successors: Callable[[State], Iterable[tuple[str, State]]],
    is_goal: Callable[[State], bool],
    max_moves: int | None = None,
) -> list[str] | None:
    """Return the fewest moves from `start` to a goal; None if there are none, or more than `max_moves`.

    `successors` gives the moves of a state and where they lead. Among paths of equal length, earlier moves win.
    """
    if is_goal(start):
        return []
    reached_from: dict[State, tuple[State, str]] = {start: (start, "")}
    frontier, depth = [start], 0
    while frontier and (max_moves is None or depth < max_moves):
        reached: list[State] = []
        for state in frontier:
            for move, after in successors(state):
                if after in reached_from:
                    continue
                reached_from[after] = state, move
                if is_goal(after):
                    return _trace_moves(reached_from, start, after)
                reached.append(after)
        frontier, depth = reached, depth + 1
    return None


def _trace_moves(reached_from: dict[State, tuple[State, str]], start: State, state: State) -> list[str]:
    moves: list[str] = []
    while state != start:
        state, move = reached_from[state]
        moves.append(move)
    return moves[::-1]
