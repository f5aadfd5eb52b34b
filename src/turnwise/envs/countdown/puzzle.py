"""Expressions of whole numbers with + - * / and parentheses: read by hand, so no text can ever run as code."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from turnwise.core.errors import UserError

LONGEST = 200
"""Characters; far more than an expression of six numbers needs."""
PRIORITY = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2}
TOKEN = re.compile(r"[0-9]+|\S")
SIGNS = str.maketrans("×÷", "*/")

Postfix = tuple[int | str, ...]
"""Numbers, each operation after the two that it joins: (1 + 2) * 3 is 1 2 + 3 *."""


def parse_expression(text: str) -> Postfix:
    """The expression in postfix order; a ValueError if it is none. No recursion: nesting cannot exhaust the stack."""
    if len(text) > LONGEST:
        raise ValueError("too long for an expression")
    output: list[int | str] = []
    waiting: list[str] = []  # operations and parentheses whose right side is not complete
    number_next = True
    for token in TOKEN.findall(text.translate(SIGNS)):
        if number_next and token[0] in "0123456789":
            output.append(int(token))
            number_next = False
        elif number_next and token == "(":
            waiting.append(token)
        elif not number_next and token in "+-*/":
            while waiting and PRIORITY[waiting[-1]] >= PRIORITY[token]:
                output.append(waiting.pop())
            waiting.append(token)
            number_next = True
        elif not number_next and token == ")" and "(" in waiting:
            while (operation := waiting.pop()) != "(":
                output.append(operation)
        else:
            raise ValueError("no expression")
    if number_next or "(" in waiting:
        raise ValueError("the expression is not complete")
    return (*output, *reversed(waiting))


def numbers_in(postfix: Postfix) -> list[int]:
    return [item for item in postfix if isinstance(item, int)]


def evaluate(postfix: Postfix) -> Fraction:
    """The exact value; a ValueError where a division by zero leaves it without one."""
    stack: list[Fraction] = []
    for item in postfix:
        if isinstance(item, int):
            stack.append(Fraction(item))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(apply_operation(left, item, right))
    return stack[0]


def apply_operation(left: Fraction, operation: str, right: Fraction) -> Fraction:
    if operation == "+":
        return left + right
    if operation == "-":
        return left - right
    if operation == "*":
        return left * right
    if right == 0:
        raise ValueError("division by zero")
    return left / right


def uses_each_at_most_once(numbers: Sequence[int], given: Sequence[int]) -> bool:
    """Whether `numbers` can be taken from `given`, each of those at most once."""
    left = list(given)
    for number in numbers:
        if number not in left:
            return False
        left.remove(number)
    return True


TRIES = 200_000
"""One in eight is kept with the usual numbers and targets, one in ten thousand where six must make one target."""
SINGLE = 3
"""The priority of a number alone: it never needs parentheses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountdownPuzzle:
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


def generate_puzzle(
    rng: random.Random, *, fewest: int, most: int, largest: int, targets: tuple[int, int]
) -> CountdownPuzzle:
    """`fewest` to `most` numbers from 1 to `largest`, and a target that none of them is, between the two `targets`."""
    count = rng.randint(fewest, most)
    for _ in range(TRIES):
        numbers = tuple(rng.randint(1, largest) for _ in range(count))
        whole = random_expression(rng, numbers)
        if targets[0] <= whole.value <= targets[1] and whole.value not in numbers:
            return CountdownPuzzle(numbers=numbers, target=whole.value, solution=whole.text)
    raise UserError(f"found no target from {targets[0]} to {targets[1]}: widen the targets or raise largest")


def random_expression(rng: random.Random, numbers: Sequence[int]) -> Term:
    """An expression of all these numbers in a random order, with random operations and parentheses."""
    terms = [Term(str(number), number, SINGLE) for number in numbers]
    while len(terms) > 1:
        rng.shuffle(terms)
        terms.append(rng.choice(combine(terms.pop(), terms.pop())))
    return terms[0]


def combine(left: Term, right: Term) -> list[Term]:
    """What the two make by each operation that keeps to whole numbers from 1 up."""
    values = {"+": left.value + right.value, "*": left.value * right.value}
    if left.value > right.value:
        values["-"] = left.value - right.value
    if left.value % right.value == 0:
        values["/"] = left.value // right.value
    return [Term(format_operation(left, sign, right), value, PRIORITY[sign]) for sign, value in values.items()]


def format_operation(left: Term, sign: str, right: Term) -> str:
    """With parentheses where they are needed, and nowhere else."""
    before = f"({left.text})" if left.priority < PRIORITY[sign] else left.text
    bound = right.priority > PRIORITY[sign] or (right.priority == PRIORITY[sign] and sign in "+*")
    after = right.text if bound else f"({right.text})"
    return f"{before} {sign} {after}"
