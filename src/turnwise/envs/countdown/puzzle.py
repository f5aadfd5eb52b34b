"""Countdown puzzles: a parser for arithmetic expressions, and a generator that builds puzzles from solutions."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from turnwise.core.errors import UserError

MAX_CHARS = 200
"""Longest expression that is parsed; six numbers need far fewer characters."""
PRIORITY = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2}
NUMBER_PRIORITY = 3
"""Priority of a single number, which never needs parentheses."""
TOKEN = re.compile(r"[0-9]+|\S")
OPERATION_SIGNS = str.maketrans("×÷", "*/")
GENERATION_ATTEMPTS = 200_000
"""One attempt in eight succeeds with the default parameters, one in ten thousand when six numbers must reach one
target."""

Postfix = tuple[int | str, ...]
"""Expression in postfix order: (1 + 2) * 3 is 1 2 + 3 *."""


def parse_expression(text: str) -> Postfix:
    """Parse an expression of integers, + - * / and parentheses; raises ValueError if it is not one.

    This is the shunting-yard algorithm: no `eval`, so text never runs as code, and no recursion, so deep nesting cannot
    exhaust the stack.
    """
    if len(text) > MAX_CHARS:
        raise ValueError("the expression is too long")
    output: list[int | str] = []
    operators: list[str] = []  # including open parentheses
    number_next = True
    for token in TOKEN.findall(text.translate(OPERATION_SIGNS)):
        if number_next and token[0] in "0123456789":
            output.append(int(token))
            number_next = False
        elif number_next and token == "(":
            operators.append(token)
        elif not number_next and token in "+-*/":
            while operators and PRIORITY[operators[-1]] >= PRIORITY[token]:
                output.append(operators.pop())
            operators.append(token)
            number_next = True
        elif not number_next and token == ")" and "(" in operators:
            while (operation := operators.pop()) != "(":
                output.append(operation)
        else:
            raise ValueError("not an expression")
    if number_next or "(" in operators:
        raise ValueError("the expression is incomplete")
    return (*output, *reversed(operators))


def numbers_in(postfix: Postfix) -> list[int]:
    return [item for item in postfix if isinstance(item, int)]


def evaluate(postfix: Postfix) -> Fraction:
    """Return the exact value; raises ValueError on division by zero."""
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


def uses_each_at_most_once(numbers: Sequence[int], available: Sequence[int]) -> bool:
    """Return whether `numbers` is a sub-multiset of `available`."""
    remaining = list(available)
    for number in numbers:
        if number not in remaining:
            return False
        remaining.remove(number)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CountdownPuzzle:
    numbers: tuple[int, ...]
    target: int
    solution: str
    """An expression that uses every number; shorter solutions may exist."""


class Term(NamedTuple):
    """A partial expression during generation."""

    text: str
    value: int
    priority: int
    """Priority of the outermost operation."""


def generate_puzzle(
    rng: random.Random, *, fewest: int, most: int, largest: int, targets: tuple[int, int]
) -> CountdownPuzzle:
    """Combine `fewest` to `most` numbers from 1 to `largest` at random until the value is in the range `targets`.

    The value becomes the target, so every puzzle has a solution. No number equals the target.
    """
    count = rng.randint(fewest, most)
    for _ in range(GENERATION_ATTEMPTS):
        numbers = tuple(rng.randint(1, largest) for _ in range(count))
        expression = random_expression(rng, numbers)
        if targets[0] <= expression.value <= targets[1] and expression.value not in numbers:
            return CountdownPuzzle(numbers=numbers, target=expression.value, solution=expression.text)
    raise UserError(f"Found no target from {targets[0]} to {targets[1]}: widen the range of targets or raise largest.")


def random_expression(rng: random.Random, numbers: Sequence[int]) -> Term:
    """Combine all these numbers in random order, with random operations and parentheses."""
    terms = [Term(str(number), number, NUMBER_PRIORITY) for number in numbers]
    while len(terms) > 1:
        rng.shuffle(terms)
        terms.append(rng.choice(combine(terms.pop(), terms.pop())))
    return terms[0]


def combine(left: Term, right: Term) -> list[Term]:
    """Apply each operation whose result is a positive integer."""
    values = {"+": left.value + right.value, "*": left.value * right.value}
    if left.value > right.value:
        values["-"] = left.value - right.value
    if left.value % right.value == 0:
        values["/"] = left.value // right.value
    return [Term(format_operation(left, sign, right), value, PRIORITY[sign]) for sign, value in values.items()]


def format_operation(left: Term, sign: str, right: Term) -> str:
    """Write the operation with parentheses only where they are needed."""
    left_text = f"({left.text})" if left.priority < PRIORITY[sign] else left.text
    binds = right.priority > PRIORITY[sign] or (right.priority == PRIORITY[sign] and sign in "+*")
    right_text = right.text if binds else f"({right.text})"
    return f"{left_text} {sign} {right_text}"
