"""Expressions of whole numbers with + - * / and parentheses: read by hand, so no text can ever run as code."""

import re
from collections.abc import Sequence
from fractions import Fraction

LONGEST = 200
"""Characters; far more than an expression of six numbers needs."""
PRIORITY = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2}
TOKEN = re.compile(r"[0-9]+|\S")
SIGNS = str.maketrans("×÷", "*/")

Postfix = tuple[int | str, ...]
"""Numbers, each operation after the two that it joins: (1 + 2) * 3 is 1 2 + 3 *."""


def parse(text: str) -> Postfix:
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


def numbers_of(postfix: Postfix) -> list[int]:
    return [item for item in postfix if isinstance(item, int)]


def value_of(postfix: Postfix) -> Fraction:
    """The exact value; a ValueError where a division by zero leaves it without one."""
    stack: list[Fraction] = []
    for item in postfix:
        if isinstance(item, int):
            stack.append(Fraction(item))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(calculated(left, item, right))
    return stack[0]


def calculated(left: Fraction, operation: str, right: Fraction) -> Fraction:
    if operation == "+":
        return left + right
    if operation == "-":
        return left - right
    if operation == "*":
        return left * right
    if right == 0:
        raise ValueError("division by zero")
    return left / right


def within(numbers: Sequence[int], given: Sequence[int]) -> bool:
    """Whether `numbers` can be taken from `given`, each of those at most once."""
    left = list(given)
    for number in numbers:
        if number not in left:
            return False
        left.remove(number)
    return True
