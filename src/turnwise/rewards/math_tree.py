"""Expressions as trees, and whether one is a literal number or simplified."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import reduce

from turnwise.rewards.math_text import Postfix

MAX_DEPTH = 40
"""Nesting of an expression, at most; these functions are recursive."""
CONSTANTS = {"e", "i"}
"""Letters that may be numbers."""


@dataclass(frozen=True, slots=True)
class Negative:
    of: "Node"


@dataclass(frozen=True, slots=True)
class Sum:
    terms: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Product:
    top: tuple["Node", ...]
    bottom: tuple["Node", ...] = ()


@dataclass(frozen=True, slots=True)
class Power:
    base: "Node"
    exponent: "Node"


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    of: "Node"


Node = Fraction | Decimal | str | Negative | Sum | Product | Power | Call
"""A number, pi, a variable, or an operation. Sums and products are flat, with their parts in a fixed order."""


def build_tree(postfix: Postfix) -> Node:
    """Return the tree of an expression; raises ValueError if it is nested too deeply."""
    stack: list[tuple[Node, int]] = []
    for item in postfix:
        if not isinstance(item, str) or (len(item) == 1 and item not in "+-*/^"):
            stack.append((item, 0))
            continue
        right, depth = stack.pop()
        if len(item) > 1:
            node = _negate(right) if item == "neg" else Call(item, right)
        else:
            left, other = stack.pop()
            node, depth = _join(left, item, right), max(depth, other)
        if depth >= MAX_DEPTH:
            raise ValueError("nested too deeply")
        stack.append((node, depth if isinstance(node, Sum | Product) else depth + 1))
    return stack[0][0]


def _join(left: Node, operation: str, right: Node) -> Node:
    if operation == "^":
        return Power(left, right)
    if operation in "+-":
        return _sum([*_terms(left), *_terms(_negate(right) if operation == "-" else right)])
    if isinstance(left, Negative) != isinstance(right, Negative):  # the sign of a product is in front of it
        return Negative(_join(_without_sign(left), operation, _without_sign(right)))
    (top, bottom), (right_top, right_bottom) = _factors(left), _factors(right)
    if operation == "/":
        right_top, right_bottom = right_bottom, right_top
    return Product(_sorted([*top, *right_top]), _sorted([*bottom, *right_bottom]))


def _sorted(nodes: Sequence[Node]) -> tuple[Node, ...]:
    return tuple(sorted(nodes, key=repr))


def _sum(terms: Sequence[Node]) -> Node:
    return Sum(_sorted(terms))


def _negate(node: Node) -> Node:
    return _sum([Negative(term) for term in node.terms]) if isinstance(node, Sum) else Negative(node)


def _terms(node: Node) -> tuple[Node, ...]:
    return node.terms if isinstance(node, Sum) else (node,)


def _factors(node: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    return (node.top, node.bottom) if isinstance(node, Product) else ((node,), ())


def _without_sign(node: Node) -> Node:
    return node.of if isinstance(node, Negative) else node


def _children(node: Node) -> tuple[Node, ...]:
    match node:
        case Negative(of) | Call(_, of):
            return (of,)
        case Sum(terms):
            return terms
        case Product(top, bottom):
            return top + bottom
        case Power(base, exponent):
            return base, exponent
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and everything in it."""
    yield node
    for child in _children(node):
        yield from walk(child)


def variables(node: Node) -> set[str]:
    return {part for part in walk(node) if isinstance(part, str)} - CONSTANTS


def is_literal(node: Node) -> bool:
    """Return whether this is a number with nothing left to compute: 5, -2.5, 3/4 in lowest terms, 1.5*10^3."""
    return literal_value(node) is not None or _is_scientific(_without_sign(node))


def literal_value(node: Node) -> Fraction | None:
    """Return the value of an integer, a decimal or a fraction in lowest terms; None for anything else."""
    match node:
        case Fraction():
            return node
        case Negative(of) if not isinstance(of, Negative) and (value := literal_value(of)) is not None:
            return -value
        case Product((Fraction() as top,), (Fraction() as bottom,)) if _is_reduced(top, bottom):
            return top / bottom
        case _:
            return None


def _is_reduced(top: Fraction, bottom: Fraction) -> bool:
    whole = top.denominator == bottom.denominator == 1
    return whole and bottom > 1 and math.gcd(top.numerator, bottom.numerator) == 1


def _is_scientific(node: Node) -> bool:
    match node:
        case Product((Fraction() as mantissa, Power(Fraction() as ten, exponent)), ()):
            power = literal_value(exponent)
            return 1 <= mantissa < 10 and ten == 10 and power is not None and power.denominator == 1
        case _:
            return False


def is_simplified(node: Node) -> bool:
    """Return whether no arithmetic on numbers, like terms or common factors are left."""
    if is_literal(node):
        return True
    if not all(map(is_simplified, _children(node))):
        return False
    match node:
        case Negative(of):
            return not isinstance(of, Negative)
        case Sum(terms):
            return _is_simplified_sum(terms)
        case Product(top, bottom):
            return _is_simplified_product(top, bottom)
        case Power(base, exponent):
            return _is_simplified_power(base, literal_value(exponent))
        case Call("sqrt", of):
            return not _is_constant(of) or _is_square_free(of)
        case _:
            return True


def _is_constant(node: Node) -> bool:
    """Return whether this is arithmetic on rational numbers only."""
    return not any(isinstance(part, Decimal | str | Call) for part in walk(node))


def _is_square_free(node: Node) -> bool:
    """Return whether this is an integer above 1 that no square divides; large ones count as such."""
    if not isinstance(node, Fraction) or node.denominator > 1 or node <= 1:
        return False
    number = node.numerator
    if math.isqrt(number) ** 2 == number:
        return False
    return all(number % (root * root) for root in range(2, min(math.isqrt(number), 1000) + 1))


def _is_simplified_sum(terms: Sequence[Node]) -> bool:
    plain = [_without_sign(term) for term in terms]
    if any(term == 0 or _is_expandable(term) for term in plain):
        return False
    alike = [frozenset(map(repr, _variable_part(term))) for term in plain]
    return len(set(alike)) == len(alike)


def _variable_part(term: Node) -> list[Node]:
    """Return the factors that are not rational numbers, those of the denominator marked as such."""
    top, bottom = _factors(term)
    parts = [factor for factor in top if literal_value(factor) is None]
    return [*parts, *(Power(factor, Fraction(-1)) for factor in bottom if literal_value(factor) is None)]


def _is_expandable(term: Node) -> bool:
    """Return whether a term is a product with a sum in it, unless something but a number divides it."""
    top, bottom = _factors(term)
    if any(literal_value(factor) is None for factor in bottom):
        return False
    return any(isinstance(factor, Sum) or (isinstance(factor, Power) and _is_sum_power(factor)) for factor in top)


def _is_sum_power(node: Power) -> bool:
    exponent = literal_value(node.exponent)
    return isinstance(node.base, Sum) and exponent is not None and exponent > 0 and exponent.denominator == 1


def _is_simplified_product(top: Sequence[Node], bottom: Sequence[Node]) -> bool:
    numbers, divisors = (
        [value for factor in side if (value := literal_value(factor)) is not None] for side in (top, bottom)
    )
    others = [factor for factor in (*top, *bottom) if literal_value(factor) is None]
    if len(numbers) > 1 or len(divisors) > 1 or any(isinstance(factor, Negative) for factor in (*top, *bottom)):
        return False
    if 0 in numbers or (numbers == [1] and not divisors and len(top) > 1):
        return False
    if divisors and not _is_reduced(math.prod(numbers, start=Fraction(1)), divisors[0]):
        return False
    sums = [factor for factor in top if isinstance(factor, Sum)]
    if divisors and any(math.gcd(_content(term), divisors[0].numerator) > 1 for term in sums):
        return False
    if sum(not variables(term) for term in sums) > 1 or sum(map(_is_numeric_root, top)) > 1:
        return False
    if any(_is_numeric_root(part) for factor in bottom for part in walk(factor)):
        return False
    bases = [repr(factor.base if isinstance(factor, Power) else factor) for factor in others]
    return len(set(bases)) == len(bases)


def _is_numeric_root(node: Node) -> bool:
    return isinstance(node, Call) and node.function == "sqrt" and isinstance(node.of, Fraction)


def _content(node: Sum) -> int:
    """Return the greatest common divisor of a sum's coefficients; 1 if they are not integers."""
    coefficients = [Fraction(1)]
    for term in node.terms:
        top, bottom = _factors(_without_sign(term))
        numbers = [value for factor in top if (value := literal_value(factor)) is not None]
        whole = len(numbers) == 1 and not bottom and numbers[0].denominator == 1
        coefficients.append(numbers[0] if whole else Fraction(1))
    return reduce(math.gcd, (value.numerator for value in coefficients[1:]))


def _is_simplified_power(base: Node, exponent: Fraction | None) -> bool:
    if exponent is None:
        return True
    if isinstance(base, Fraction):  # 2^10 is a number to compute, 2^(1/3) is a root
        return base.denominator == 1 and base > 1 and 0 < exponent < 1
    if exponent in (0, 1) or isinstance(base, Negative | Power) or (isinstance(base, Call) and base.function == "sqrt"):
        return False
    if isinstance(base, Product) and any(literal_value(factor) is not None for factor in (*base.top, *base.bottom)):
        return False
    return not isinstance(base, Sum) or bool(variables(base)) or exponent.denominator > 1


def denominator_degree(node: Node, *, of_sum: bool) -> int:
    """Return the degree of the denominators. `of_sum`: that of a sum is the sum over its terms, else the largest."""
    match node:
        case Negative(of):
            return denominator_degree(of, of_sum=of_sum)
        case Sum(terms):
            degrees = [denominator_degree(term, of_sum=of_sum) for term in terms]
            return sum(degrees) if of_sum else max(degrees)
        case Product(top, bottom):
            return sum(denominator_degree(factor, of_sum=of_sum) for factor in top) + sum(map(_degree, bottom))
        case Power(base, exponent):
            power = int(literal_value(exponent) or 0)
            return power * denominator_degree(base, of_sum=of_sum) if power > 0 else -power * _degree(base)
        case _:
            return 0


def _degree(node: Node) -> int:
    match node:
        case str():
            return int(node not in CONSTANTS)
        case Negative(of) | Call(_, of):
            return _degree(of)
        case Sum(terms):
            return max(map(_degree, terms))
        case Product(top, _):
            return sum(map(_degree, top))
        case Power(base, exponent):
            return max(1, int(literal_value(exponent) or 1)) * _degree(base)
        case _:
            return 0
