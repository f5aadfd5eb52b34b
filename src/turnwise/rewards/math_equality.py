"""Whether two expressions are equal: exactly where they are rational, to fifty digits where roots are in them.

With variables, equal at random points wherever both have a value. Sizes are bounded, so no answer takes long.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow, localcontext
from fractions import Fraction
from typing import TypeVar

from turnwise.core.chance import stream
from turnwise.rewards.math_text import LONGEST, PREFIXES, TOKEN, Postfix, parse, plain, variables

Value = Fraction | Decimal
Number = TypeVar("Number", Fraction, Decimal)

MOST_BITS = 4096
"""Of a number on the way."""
DIGITS = Context(prec=60, Emax=999, Emin=-999, traps=[InvalidOperation, DivisionByZero, Overflow])
SAME = Decimal("1e-50")
"""How far two values with roots in them may lie apart, of their size: what their last digits are off by."""
POINTS, LEAST_POINTS = 8, 2
CLOSE = 1e-6
"""How near a decimal must come to a number that has no end in decimals, of its size."""


def exact(text: str) -> Fraction | None:
    """The value of a number, a fraction or an expression of them; None for anything else."""
    with suppress(ValueError):
        value = evaluated(parse(text), {})
        return value if isinstance(value, Fraction) else None
    return None


def equal(text: str, wanted: Fraction, close: float = CLOSE) -> bool:
    """Whether `text` is that number; a decimal may be rounded."""
    found = exact(text)
    return found is not None and (found == wanted or ("." in plain(text) and _near(found, wanted, close)))


def equivalent(text: str, wanted: str, close: float = CLOSE) -> bool:
    """Whether two expressions mean the same; what is no expression must be the same text, spaces apart."""
    text, wanted = _right_side(text, wanted)
    if TOKEN.findall(text[:LONGEST]) == TOKEN.findall(wanted[:LONGEST]) and len(text) <= LONGEST:
        return bool(text)
    try:
        one, other = parse(text), parse(wanted)
    except ValueError:
        return False
    rounded = close if "." in text else 0.0
    compared = [_same(a, b, rounded) for a, b in _values(one, other, wanted)]
    least = LEAST_POINTS if variables(one) | variables(other) else 1
    return len(compared) >= least and all(compared)


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
    rng = stream("points of", seed)
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


def _same(one: Value, other: Value, close: float) -> bool:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other or (close > 0 and _near(one, other, close))
    with localcontext(DIGITS):
        apart, size = abs(_decimal(one) - _decimal(other)), max(abs(_decimal(one)), abs(_decimal(other)), Decimal(1))
        return apart <= SAME * size or (close > 0 and apart <= Decimal(close) * size)


def _near(one: Fraction, other: Fraction, close: float) -> bool:
    return abs(one - other) <= Fraction(close) * max(Fraction(1), abs(other))
