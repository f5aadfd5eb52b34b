"""Levels by reverse play: from the solved state, moves are taken back, so the same moves forward solve the level."""

import random

from turnwise.core.errors import UserError
from turnwise.envs.grid import DIRECTIONS, Cell, moved
from turnwise.envs.sokoban.level import Level

FLOOR_SHARE = (0.6, 0.85)
"""Of the cells inside the border, from and to."""
PULL_SHARE = 0.6
"""How often a box is pulled where one can be: the rest are steps of the player alone."""
TRIES = 300
TRIES_A_ROOM = 10
"""Carving costs more than playing back."""
TRIES_ALL_OFF = 50
"""So often every box must leave its target; after that one box will do."""


def generate(rng: random.Random, *, size: int, boxes: int, longest: int) -> Level:
    """An unsolved level with a solution of at most `longest` moves, by construction: it takes back no more."""
    for attempt in range(TRIES):
        if attempt % TRIES_A_ROOM == 0:
            floor = carve(rng, size=size, least=2 * boxes + 2)
        cells = rng.sample(sorted(floor), boxes + 1)
        targets, player = frozenset(cells[1:]), cells[0]
        solved = Level(size=size, floor=floor, targets=targets, boxes=targets, player=player)
        level = play_back(rng, solved, moves=rng.randint((longest + 1) // 2, longest))
        if level.boxes_on == 0 or (attempt >= TRIES_ALL_OFF and not level.solved):
            return level
    raise UserError(f"found no level of size {size} with {boxes} boxes and {longest} moves: raise size or max_actions")


def carve(rng: random.Random, *, size: int, least: int) -> frozenset[Cell]:
    """A connected room inside the border: the cells of a random walk."""
    inside = (size - 2) ** 2
    wanted = min(max(least, round(rng.uniform(*FLOOR_SHARE) * inside)), inside)
    cell = (rng.randint(1, size - 2), rng.randint(1, size - 2))
    floor = {cell}
    while len(floor) < wanted:
        row, column = moved(cell, rng.choice(tuple(DIRECTIONS)))
        if 1 <= row <= size - 2 and 1 <= column <= size - 2:
            cell = (row, column)
            floor.add(cell)
    return frozenset(floor)


def play_back(rng: random.Random, level: Level, *, moves: int) -> Level:
    """Takes back at most `moves` moves at random and never comes to a state twice, so that the way stays long."""
    seen = {(level.player, level.boxes)}
    for _ in range(moves):
        steps, pulls = earlier_levels(level)
        steps = [earlier for earlier in steps if (earlier.player, earlier.boxes) not in seen]
        pulls = [earlier for earlier in pulls if (earlier.player, earlier.boxes) not in seen]
        if not steps and not pulls:
            break
        level = rng.choice(pulls if pulls and (not steps or rng.random() < PULL_SHARE) else steps)
        seen.add((level.player, level.boxes))
    return level


def earlier_levels(level: Level) -> tuple[list[Level], list[Level]]:
    """All levels that one move turns into this one: by a step of the player alone, and by a push."""
    steps, pulls = [], []
    for direction, (row, column) in DIRECTIONS.items():
        behind = (level.player[0] - row, level.player[1] - column)
        ahead = moved(level.player, direction)
        if behind not in level.floor or behind in level.boxes:
            continue
        steps.append(level.with_pieces(behind, level.boxes))
        if ahead in level.boxes:
            pulls.append(level.with_pieces(behind, level.boxes - {ahead} | {level.player}))
    return steps, pulls
