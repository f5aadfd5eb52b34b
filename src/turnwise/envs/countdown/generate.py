"""Puzzles by calculation: numbers are joined at random, and where that leads is the target, so there is a solution."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turnwise.core.errors import UserError
from turnwise.envs.countdown.expression import PRIORITY

TRIES = 200_000
"""One in eight is kept with the usual numbers and targets, one in ten thousand where six must make one target."""
SINGLE = 3
"""The priority of a number alone: it never needs parentheses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Puzzle:
    numbers: tuple[int, ...]
    target: int
    solution: str
    """Uses every number; there may be shorter ones."""


class Term(NamedTuple):
    """A part of an expression while it is made."""

    text: str
    value: int
    priority: int
    """Of its outermost operation."""


def generate(rng: random.Random, *, fewest: int, most: int, largest: int, targets: tuple[int, int]) -> Puzzle:
    """`fewest` to `most` numbers from 1 to `largest`, and a target that none of them is, between the two `targets`."""
    count = rng.randint(fewest, most)
    for _ in range(TRIES):
        numbers = tuple(rng.randint(1, largest) for _ in range(count))
        whole = joined(rng, numbers)
        if targets[0] <= whole.value <= targets[1] and whole.value not in numbers:
            return Puzzle(numbers=numbers, target=whole.value, solution=whole.text)
    raise UserError(f"found no target from {targets[0]} to {targets[1]}: widen the targets or raise largest")


def joined(rng: random.Random, numbers: Sequence[int]) -> Term:
    """An expression of all these numbers in a random order, with random operations and parentheses."""
    terms = [Term(str(number), number, SINGLE) for number in numbers]
    while len(terms) > 1:
        rng.shuffle(terms)
        terms.append(rng.choice(joins(terms.pop(), terms.pop())))
    return terms[0]


def joins(left: Term, right: Term) -> list[Term]:
    """What the two make by each operation that keeps to whole numbers from 1 up."""
    values = {"+": left.value + right.value, "*": left.value * right.value}
    if left.value > right.value:
        values["-"] = left.value - right.value
    if left.value % right.value == 0:
        values["/"] = left.value // right.value
    return [Term(written(left, sign, right), value, PRIORITY[sign]) for sign, value in values.items()]


def written(left: Term, sign: str, right: Term) -> str:
    """With parentheses where they are needed, and nowhere else."""
    before = f"({left.text})" if left.priority < PRIORITY[sign] else left.text
    bound = right.priority > PRIORITY[sign] or (right.priority == PRIORITY[sign] and sign in "+*")
    after = right.text if bound else f"({right.text})"
    return f"{before} {sign} {after}"
