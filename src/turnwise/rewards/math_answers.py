"""Reward for mathematical answers: 1 if an answer equals the reference and is written as a result (`math_form`).

Rational values are compared exactly, values with roots to fifty digits, and expressions with variables at random
points where both have a value. Sizes are bounded, so no answer takes long.

What this module can parse on both sides, it decides: math-verify would round decimals to six places, so that 2.0000001
is 2, and takes a hundred times as long. Only where a side does not parse (sets, intervals, matrices, equations,
functions, units, text around \\boxed) math-verify is asked, if it is installed (`math_verifier`).

A decimal may be rounded only if the reference has no exact decimal (1/3, sqrt(2), 2 pi) or is a rounded decimal itself.
It must then have six digits or more and be off by less than 1 in the last one.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow, localcontext
from fractions import Fraction
from typing import Annotated, Self, TypeVar

from pydantic import Field, PrivateAttr

from turnwise.core.random_streams import random_stream
from turnwise.rewards.math_form import is_result
from turnwise.rewards.math_text import (
    MAX_EXPRESSION_CHARS,
    PREFIXES,
    TOKEN,
    Postfix,
    decimals,
    final_expression,
    is_expression,
    parse,
    plain,
    variables,
)
from turnwise.rewards.math_tree import build_tree, is_literal
from turnwise.rewards.math_verifier import MathVerifier
from turnwise.rewards.rubric import BuiltInReward, Submission, reference_answers, select_text

Value = Fraction | Decimal
Number = TypeVar("Number", Fraction, Decimal)

MOST_BITS = 4096
"""Bits of an intermediate number, at most."""
DIGITS = Context(prec=60, Emax=999, Emin=-999, traps=[InvalidOperation, DivisionByZero, Overflow])
SAME = Decimal("1e-50")
"""Relative difference of two values with roots that counts as rounding."""
POINTS, LEAST_POINTS = 8, 2
SIX_DIGITS = Fraction(1, 10**5)
"""Largest relative size of the last digit at which a decimal counts as rounded: six digits."""
DOUBLE = Fraction(1, 10**15)
"""Relative error of double-precision arithmetic."""


def exact(text: str) -> Fraction | None:
    """Return the exact value of a rational expression; None for anything else."""
    with suppress(ValueError):
        value = evaluate(parse(text), {})
        return value if isinstance(value, Fraction) else None
    return None


def equal(text: str, expected: Fraction) -> bool:
    """Return whether `text` is this number, written as a literal: `17*23` is not 391.

    A decimal may be rounded if the number has no finite decimal.
    """
    value = exact(text)
    if value is None or not is_literal(build_tree(parse(text))):
        return False
    rounded = bool(decimals(text)) and not _ends(expected)
    return _same(value, expected, _rounding(text, "") if rounded else Fraction(0))


def compare(text: str, expected: str, close: float | None = None) -> bool | None:
    """Return whether two expressions are equal; None if one is not an expression and they are not the same text.

    `close`: relative error that an answer with a decimal may have.
    """
    text, expected = _right_side(text, expected)
    if (
        TOKEN.findall(text[:MAX_EXPRESSION_CHARS]) == TOKEN.findall(expected[:MAX_EXPRESSION_CHARS])
        and len(text) <= MAX_EXPRESSION_CHARS
    ):
        return bool(text)
    try:
        one, other = parse(text), parse(expected)
    except ValueError:
        return None
    if not decimals(text):
        error = Fraction(0)
    elif close is not None:
        error = Fraction(close)
    else:
        error = Fraction(0) if _is_exact(other, expected) else _rounding(text, expected)
    compared = [_same(a, b, error) for a, b in _values(one, other, expected)]
    least = LEAST_POINTS if variables(one) | variables(other) else 1
    return len(compared) >= least and all(compared)


def _is_exact(reference: Postfix, text: str) -> bool:
    """Return whether the reference has an exact decimal, so that a rounded one is wrong."""
    if variables(reference):
        whole = all(isinstance(item, Fraction | str) and item not in ("/", "sqrt") for item in reference)
        return whole and not decimals(text)
    try:
        value = evaluate(reference, {})
    except ValueError:
        return True
    return isinstance(value, Fraction) and (value.denominator == 1 if decimals(text) else _ends(value))


def _ends(value: Fraction) -> bool:
    """Return whether the number has a finite decimal: only 2 and 5 divide its denominator."""
    return 10 ** value.denominator.bit_length() % value.denominator == 0


def _rounding(text: str, expected: str) -> Fraction:
    """Return the relative error of rounding: 1 in the answer's last digit, half of 1 in the reference's."""
    units = [min(map(_last_place, decimals(text))), *(_last_place(decimal) / 2 for decimal in decimals(expected))]
    return max([DOUBLE, *(unit for unit in units if unit <= SIX_DIGITS)])


def _last_place(decimal: str) -> Fraction:
    """Return the relative size of 1 in the last digit."""
    mantissa = re.split("[eE]", decimal)[0]
    value = Fraction(mantissa)
    return Fraction(1, 10 ** len(mantissa.partition(".")[2])) / value if value else Fraction(1)


def _right_side(text: str, expected: str) -> tuple[str, str]:
    """Return what to compare. Either side may name its variable: x = 3 equals 3, but not y = 3."""
    (name, value), (expected_name, expected_value) = _split_name(plain(text)), _split_name(plain(expected))
    if name and expected_name and name != expected_name:
        return plain(text), plain(expected)
    return value, expected_value


def _split_name(text: str) -> tuple[str, str]:
    name, sign, value = (part.strip() for part in text.partition("="))
    return (name, value) if sign and len(name) == 1 and name.isalpha() else ("", text)


def _values(one: Postfix, other: Postfix, seed: str) -> Iterator[tuple[Value, Value]]:
    """Yield the values of both at the same points, skipping points where one has none."""
    names = sorted(variables(one) | variables(other))
    rng = random_stream("points of", seed)
    for number in range(POINTS if names else 1):
        least = 1 if number % 2 else -9999  # roots need positive points
        point = {name: Fraction(rng.randint(least, 9999), rng.randint(1, 97)) for name in names}
        with suppress(ValueError):
            yield evaluate(one, point), evaluate(other, point)


def evaluate(postfix: Postfix, point: Mapping[str, Fraction]) -> Value:
    """Return the value at a point; raises ValueError if there is none or it is too large."""
    stack: list[Value] = []
    try:
        with localcontext(DIGITS):
            for item in postfix:
                if not isinstance(item, str):
                    stack.append(item)
                elif item in PREFIXES:
                    stack.append(_check_size(-stack.pop() if item == "neg" else _root(stack.pop())))
                elif len(item) == 1 and item.isalpha():
                    stack.append(point[item])
                else:
                    right, left = stack.pop(), stack.pop()
                    stack.append(_check_size(_calculate(left, item, right)))
    except (ArithmeticError, KeyError) as error:
        raise ValueError("no value at this point") from error
    return stack[0]


def _calculate(left: Value, operation: str, right: Value) -> Value:
    if operation == "^":
        return _power(left, right)
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        return _apply(_decimal(left), operation, _decimal(right))
    return _apply(left, operation, right)


def _apply(left: Number, operation: str, right: Number) -> Number:
    if operation == "+":
        return left + right
    if operation == "-":
        return left - right
    return left * right if operation == "*" else left / right


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        if isinstance(base, Fraction) and abs(exponent) * _bits(base) > MOST_BITS:
            raise ValueError("power too large")
        return base ** int(exponent)
    if exponent == Fraction(1, 2):
        return _root(base)
    if base <= 0:
        raise ValueError("root of a negative number")
    return _decimal(base) ** _decimal(exponent)


def _root(value: Value) -> Value:
    if value < 0:
        raise ValueError("root of a negative number")
    if isinstance(value, Fraction):
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return _decimal(value).sqrt()


def _decimal(value: Value) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(value.numerator) / Decimal(value.denominator)


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _check_size(value: Value) -> Value:
    if isinstance(value, Fraction) and _bits(value) > MOST_BITS:
        raise ValueError("number too large")
    return value


def _same(value: Value, expected: Value, error: Fraction) -> bool:
    """Compare with relative tolerance `error`."""
    if isinstance(value, Fraction) and isinstance(expected, Fraction):
        return value == expected or abs(value - expected) < error * abs(expected)
    try:
        with localcontext(DIGITS):
            one, other, part = _decimal(value), _decimal(expected), _decimal(error)
            apart, size = abs(one - other), max(abs(one), abs(other), Decimal(1))
            return apart <= SAME * size or apart < part * abs(other)
    except ArithmeticError:  # one value overflows Decimal, the other does not
        return False


def _contradicts_itself(text: str) -> bool:
    """Return whether an equation equates different numbers: 7 = 8, which math-verify takes for 8."""
    return len({value for side in text.split("=") if (value := exact(side)) is not None}) > 1


class SymbolicMath(BuiltInReward):
    """1 if the answer equals an accepted answer and has no work left in it, else 0. Nothing is run as code."""

    _verifier: MathVerifier | None = PrivateAttr(default=None)

    against: str = "answer"
    """Column with the accepted answer or a list of them."""
    close: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Relative error that a decimal answer may have. Default: exact if the reference is exact (3, 3/4); for 1/3 or
    sqrt(2) six digits or more, off by less than 1 in the last."""

    def with_verifier(self, verifier: MathVerifier) -> Self:
        """Return a copy that asks the run's math-verify about what `compare` cannot decide."""
        part = self.model_copy()
        part._verifier = verifier
        return part

    async def score(self, submission: Submission) -> float:
        answer = select_text(submission, "answer")
        for reference in reference_answers(submission.row, self.against):
            if await self._is_right(answer, reference, submission.question):
                return 1.0
        return 0.0

    async def _is_right(self, answer: str, reference: str, question: str) -> bool:
        verdict, verifier = compare(answer, reference, self.close), self._verifier
        if verdict is None and verifier is not None and not verifier.is_installed:
            if not is_expression(reference):
                verifier.hint(reference)
            return False
        if verdict is None and verifier is not None:
            answer = final_expression(answer)
            verdict = compare(answer, reference, self.close)
        if verdict is False or not is_result(answer, reference, question):
            return False
        if verdict is None and verifier is not None and not _contradicts_itself(answer):
            verdict = await verifier.verify(answer, reference)
        return bool(verdict)
