"""Whether two expressions are equal: exactly where they are rational, to fifty digits where roots are in them.

With variables, equal at random points wherever both have a value. Sizes are bounded, so no answer takes long.

A decimal may be rounded only where the reference cannot be written exactly in decimals (1/3, sqrt(2), 2 pi), or is a
rounded decimal itself: then it must have six digits or more and be off by less than a 1 in the last of them.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow, localcontext
from fractions import Fraction
from typing import Annotated, TypeVar

from pydantic import Field

from turnwise.core.random_streams import random_stream
from turnwise.rewards.math_text import MAX_EXPRESSION_CHARS, PREFIXES, TOKEN, Postfix, decimals, parse, plain, variables
from turnwise.rewards.rubric import BuiltInReward, Submission, reference_answers, select_text

Value = Fraction | Decimal
Number = TypeVar("Number", Fraction, Decimal)

MOST_BITS = 4096
"""Of a number on the way."""
DIGITS = Context(prec=60, Emax=999, Emin=-999, traps=[InvalidOperation, DivisionByZero, Overflow])
SAME = Decimal("1e-50")
"""How far two values with roots in them may lie apart, of their size: what their last digits are off by."""
POINTS, LEAST_POINTS = 8, 2
SIX_DIGITS = Fraction(1, 10**5)
"""What a 1 in the last of six digits may be of a number. A decimal of fewer digits is not taken for a rounded one."""
DOUBLE = Fraction(1, 10**15)
"""Relative error that arithmetic on doubles may leave in a decimal."""


def exact(text: str) -> Fraction | None:
    """The value of a number, a fraction or an expression of them; None for anything else."""
    with suppress(ValueError):
        value = evaluated(parse(text), {})
        return value if isinstance(value, Fraction) else None
    return None


def equal(text: str, wanted: Fraction) -> bool:
    """Whether `text` is that number; a decimal may be rounded where the number has no end in decimals."""
    found = exact(text)
    rounded = bool(decimals(text)) and not _ends(wanted)
    return found is not None and _same(found, wanted, _rounding(text, "") if rounded else Fraction(0))


def equivalent(text: str, wanted: str, close: float | None = None) -> bool:
    """Whether two expressions mean the same; what is no expression must be the same text, spaces apart.

    `close`: relative error that an answer with a decimal may have, whatever the reference is.
    """
    text, wanted = _right_side(text, wanted)
    if (
        TOKEN.findall(text[:MAX_EXPRESSION_CHARS]) == TOKEN.findall(wanted[:MAX_EXPRESSION_CHARS])
        and len(text) <= MAX_EXPRESSION_CHARS
    ):
        return bool(text)
    try:
        one, other = parse(text), parse(wanted)
    except ValueError:
        return False
    if not decimals(text):
        error = Fraction(0)
    elif close is not None:
        error = Fraction(close)
    else:
        error = Fraction(0) if _is_exact(other, wanted) else _rounding(text, wanted)
    compared = [_same(a, b, error) for a, b in _values(one, other, wanted)]
    least = LEAST_POINTS if variables(one) | variables(other) else 1
    return len(compared) >= least and all(compared)


def _is_exact(reference: Postfix, text: str) -> bool:
    """Whether a decimal can be this reference exactly, so that a rounded one is wrong."""
    if variables(reference):
        whole = all(isinstance(item, Fraction | str) and item not in ("/", "sqrt") for item in reference)
        return whole and not decimals(text)
    try:
        value = evaluated(reference, {})
    except ValueError:
        return True
    return isinstance(value, Fraction) and (value.denominator == 1 if decimals(text) else _ends(value))


def _ends(value: Fraction) -> bool:
    """Whether the number has an end in decimals: no primes but 2 and 5 divide its denominator."""
    return 10 ** value.denominator.bit_length() % value.denominator == 0


def _rounding(text: str, wanted: str) -> Fraction:
    """Relative error that rounding explains: up to a 1 in the answer's last place, half of that in the reference's."""
    places = [min(map(_last_place, decimals(text))), *(_last_place(each) / 2 for each in decimals(wanted))]
    return max([DOUBLE, *(each for each in places if each <= SIX_DIGITS)])


def _last_place(decimal: str) -> Fraction:
    """What a 1 in its last place is of the number."""
    digits, value = len(decimal.partition(".")[2]), Fraction(decimal)
    return Fraction(1, 10**digits) / value if value else Fraction(1)


def _right_side(text: str, wanted: str) -> tuple[str, str]:
    """What is compared. Either may say what it is of: x = 3 is 3, but not y = 3."""
    (name, value), (wanted_name, wanted_value) = _named(plain(text)), _named(plain(wanted))
    if name and wanted_name and name != wanted_name:
        return plain(text), plain(wanted)
    return value, wanted_value


def _named(text: str) -> tuple[str, str]:
    name, sign, value = (part.strip() for part in text.partition("="))
    return (name, value) if sign and len(name) == 1 and name.isalpha() else ("", text)


def _values(one: Postfix, other: Postfix, seed: str) -> Iterator[tuple[Value, Value]]:
    """Both at the same points, those left out where one has no value."""
    names = sorted(variables(one) | variables(other))
    rng = random_stream("points of", seed)
    for number in range(POINTS if names else 1):
        least = 1 if number % 2 else -9999  # roots have values at positive points only
        point = {name: Fraction(rng.randint(least, 9999), rng.randint(1, 97)) for name in names}
        with suppress(ValueError):
            yield evaluated(one, point), evaluated(other, point)


def evaluated(postfix: Postfix, point: Mapping[str, Fraction]) -> Value:
    """A ValueError where it has no value, or none of a bearable size."""
    stack: list[Value] = []
    try:
        with localcontext(DIGITS):
            for item in postfix:
                if not isinstance(item, str):
                    stack.append(item)
                elif item in PREFIXES:
                    stack.append(_bounded(-stack.pop() if item == "neg" else _root(stack.pop())))
                elif len(item) == 1 and item.isalpha():
                    stack.append(point[item])
                else:
                    right, left = stack.pop(), stack.pop()
                    stack.append(_bounded(_calculated(left, item, right)))
    except (ArithmeticError, KeyError) as error:
        raise ValueError("it has no value here") from error
    return stack[0]


def _calculated(left: Value, operation: str, right: Value) -> Value:
    if operation == "^":
        return _power(left, right)
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        return _joined(_decimal(left), operation, _decimal(right))
    return _joined(left, operation, right)


def _joined(left: Number, operation: str, right: Number) -> Number:
    if operation == "+":
        return left + right
    if operation == "-":
        return left - right
    return left * right if operation == "*" else left / right


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        if isinstance(base, Fraction) and abs(exponent) * _bits(base) > MOST_BITS:
            raise ValueError("too large a power")
        return base ** int(exponent)
    if exponent == Fraction(1, 2):
        return _root(base)
    if base <= 0:
        raise ValueError("a root of a number below 0")
    return _decimal(base) ** _decimal(exponent)


def _root(value: Value) -> Value:
    if value < 0:
        raise ValueError("a root of a number below 0")
    if isinstance(value, Fraction):
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return _decimal(value).sqrt()


def _decimal(value: Value) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(value.numerator) / Decimal(value.denominator)


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _bounded(value: Value) -> Value:
    if isinstance(value, Fraction) and _bits(value) > MOST_BITS:
        raise ValueError("too large a number")
    return value


def _same(found: Value, wanted: Value, error: Fraction) -> bool:
    """`error`: how far they may lie apart, of the size of `wanted`."""
    if isinstance(found, Fraction) and isinstance(wanted, Fraction):
        return found == wanted or abs(found - wanted) < error * abs(wanted)
    try:
        with localcontext(DIGITS):
            one, other, part = _decimal(found), _decimal(wanted), _decimal(error)
            apart, size = abs(one - other), max(abs(one), abs(other), Decimal(1))
            return apart <= SAME * size or apart < part * abs(other)
    except ArithmeticError:  # one is too large for a number with roots, the other is not
        return False


class SymbolicMath(BuiltInReward):
    """1 where the answer means the same as one of the accepted ones, else 0. Nothing of it is run as code."""

    against: str = "answer"
    """The column with the accepted answer, or a list of them."""
    close: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Relative error that an answer written as a decimal may have; 0: none. Left out, it must be exact where the
    reference is (3, 3/4); of 1/3 or sqrt(2) it must have six digits or more and be off by less than 1 in the last."""

    async def score(self, answered: Submission) -> float:
        answer = select_text(answered, "answer")
        return float(
            any(equivalent(answer, each, self.close) for each in reference_answers(answered.row, self.against))
        )
