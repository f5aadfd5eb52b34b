"""Problem generators: arithmetic, word problems, equations and number theory, with exact answers and programs."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    question: str
    answer: Fraction
    code: str
    """Program that prints the answer."""


def _draw_number(rng: random.Random, level: int) -> int:
    """Draw a number of one digit (level 1), two or three (level 2) or four (level 3)."""
    low, high = ((2, 9), (11, 400), (1000, 9999))[level - 1]
    return rng.randint(low, high)


def expression(rng: random.Random, level: int) -> Problem:
    text, value = str(start := _draw_number(rng, level)), Fraction(start)
    for _ in range(level + 1):
        number = _draw_number(rng, level)
        match rng.choice("+-*" if level < 3 else "+-*/"):
            case "+":
                text, value = f"{text} + {number}", value + number
            case "-":
                text, value = f"{text} - {number}", value - number
            case "*":
                text, value = f"{_parenthesize(text)} * {number}", value * number
            case _:
                text, value = f"{_parenthesize(text)} / {number}", value / number
    if "/" not in text:
        return Problem(question=f"What is {text}?", answer=value, code=f"print({text})")
    exact = text.replace(str(start), f"Fraction({start})", 1)
    code = f"from fractions import Fraction\nprint({exact})"
    return Problem(question=f"What is {text}, as a fraction?", answer=value, code=code)


def _parenthesize(text: str) -> str:
    return f"({text})" if " " in text else text


def shopping(rng: random.Random, level: int) -> Problem:
    price, count, paid = _draw_number(rng, level), rng.randint(2, 9 * level), _draw_number(rng, level)
    back = paid + price * count
    return Problem(
        question=f"A lamp costs {price} coins. Ida buys {count} lamps and pays with {back} coins. How many coins come "
        "back?",
        answer=Fraction(paid),
        code=f"print({back} - {price} * {count})",
    )


def journey(rng: random.Random, level: int) -> Problem:
    first, second, hours = _draw_number(rng, level), _draw_number(rng, level), rng.randint(2, 5 * level)
    return Problem(
        question=f"Two trains leave a town in opposite directions, at {first} and {second} km an hour. How many km "
        f"apart are they after {hours} hours?",
        answer=Fraction((first + second) * hours),
        code=f"print(({first} + {second}) * {hours})",
    )


def sharing(rng: random.Random, level: int) -> Problem:
    people, share = rng.randint(3, 10 * level), _draw_number(rng, level)
    total = people * share + rng.randrange(people)
    return Problem(
        question=f"{people} friends share {total} nuts, as many for each as can be. How many nuts are left over?",
        answer=Fraction(total % people),
        code=f"print({total} % {people})",
    )


def equation(rng: random.Random, level: int) -> Problem:
    x, factor, other = (
        _draw_number(rng, level) * rng.choice((1, -1)),
        rng.randint(2, 9 * level),
        rng.randint(2, 9 * level),
    )
    add = _draw_number(rng, level)
    right = factor * x + add - other * x
    moved = f"{factor}x + {add} = {other}x {'+' if right >= 0 else '-'} {abs(right)}"
    if factor == other:
        return equation(rng, level)
    return Problem(
        question=f"Solve for x: {moved}",
        answer=Fraction(x),
        code=f"print(({right} - {add}) // ({factor} - {other}))",
    )


def divisors(rng: random.Random, level: int) -> Problem:
    number = math.prod(rng.choice((2, 2, 3, 5, 7)) for _ in range(2 + 2 * level))
    return Problem(
        question=f"How many divisors has {number}, 1 and itself included?",
        answer=Fraction(sum(number % divisor == 0 for divisor in range(1, number + 1))),
        code=f"print(sum({number} % d == 0 for d in range(1, {number} + 1)))",
    )


def power(rng: random.Random, level: int) -> Problem:
    base, exponent, modulus = rng.randint(2, 9), rng.randint(3, 20**level), rng.randint(5, 100)
    return Problem(
        question=f"What is the remainder of {base} to the power of {exponent}, divided by {modulus}?",
        answer=Fraction(pow(base, exponent, modulus)),
        code=f"print(pow({base}, {exponent}, {modulus}))",
    )


def progression(rng: random.Random, level: int) -> Problem:
    first, step, count = _draw_number(rng, level), rng.randint(2, 9), rng.randint(5, 15 * level)
    return Problem(
        question=f"A row begins with {first} and every number is {step} more than the one before. What is the sum of "
        f"its first {count} numbers?",
        answer=Fraction(sum(first + step * index for index in range(count))),
        code=f"print(sum({first} + {step} * i for i in range({count})))",
    )


PROBLEM_GENERATORS: tuple[Callable[[random.Random, int], Problem], ...] = (
    expression,
    shopping,
    journey,
    sharing,
    equation,
    divisors,
    power,
    progression,
)


def make_problem(rng: random.Random, level: int) -> Problem:
    return rng.choice(PROBLEM_GENERATORS)(rng, level)
