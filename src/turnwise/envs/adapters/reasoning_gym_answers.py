"""Checks before and after reasoning-gym's scorers (as of 0.1.25).

Nine scorers evaluate the answer as Python, directly or through sympy: they only get text that can neither call
functions nor build huge values. Four give full marks to wrong or unevaluated answers: these need an additional check.
"""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

LITERAL = re.compile(r"[\w\s\[\],.'\"-]*", re.ASCII)
"""Lists, words and numbers."""
ARITHMETIC = re.compile(r"(?:\s|\d{1,9}(?:\.\d{1,9})?(?![\w.])|\*(?!\s*\*)|[-+/()])*", re.ASCII)
"""Numbers, + - * / and parentheses."""
POWER = r"\*\*\s*(?:-?\d{1,3}|\(\s*-?\d{1,3}(?:\s*/\s*\d{1,3})?\s*\))(?![\w.]|\s*\*\*)"
FORMULA = re.compile(rf"(?:\s|\d{{1,9}}(?:\.\d{{1,9}})?(?![\w.])|[A-Za-z]++|{POWER}|\*(?!\s*\*)|[-+/()])*", re.ASCII)
"""Numbers, operations, names, and small powers that are not nested."""
FUNCTIONS = {"sin", "cos", "tan", "exp", "log", "sqrt", "pi", "asin", "acos", "atan", "sinh", "cosh", "tanh"}
NOT_FINITE = re.compile(r"\b(?:nan|inf|infinity)\b", re.IGNORECASE)
MONOMIAL = r"(?:\d++|[A-Za-z](?:\*\*\d++)?)(?:\s*\*\s*[A-Za-z](?:\s*\*\*\s*\d++)?)*+"
TERM = re.compile(MONOMIAL, re.ASCII)
POLYNOMIAL = re.compile(rf"[-+]?\s*{MONOMIAL}(?:\s*[-+]\s*{MONOMIAL})*+", re.ASCII)
"""A sum of terms like -3*x**2*y."""
FRACTION = re.compile(r"\d{1,12}(?:\.\d{1,12}|/\d{1,12})?", re.ASCII)


def is_literal(answer: str) -> bool:
    return LITERAL.fullmatch(answer) is not None


def is_arithmetic(answer: str) -> bool:
    return ARITHMETIC.fullmatch(answer) is not None


def is_formula(answer: str) -> bool:
    """Return whether the text is a formula whose names are single letters or known functions."""
    names = re.findall(r"[A-Za-z]+", answer)
    return FORMULA.fullmatch(answer) is not None and all(len(name) == 1 or name in FUNCTIONS for name in names)


SAFE_FORMATS: dict[str, Callable[[str], bool]] = {
    "binary_matrix": is_literal,
    "n_queens": is_literal,
    "spiral_matrix": is_literal,
    "string_insertion": is_literal,
    "countdown": is_arithmetic,
    "puzzle24": is_arithmetic,
    "intermediate_integration": is_formula,
    "polynomial_multiplication": is_formula,
    "simple_integration": is_formula,
}


def is_safe(task: str, answer: str, reference: str | None) -> bool:
    """Return whether the task's scorer may see the answer. NaN and infinity only pass as the reference itself."""
    if answer == reference:
        return True
    return SAFE_FORMATS.get(task, bool)(answer) and not NOT_FINITE.search(answer)


def same_fraction(answer: str, entry: Mapping[str, Any]) -> bool:
    """Check coin_flip, whose scorer accepts "0" for every probability."""
    text = answer.strip()
    if not FRACTION.fullmatch(text) or text.endswith("/" + "0" * len(text.rpartition("/")[2])):
        return False
    return abs(Fraction(text) - Fraction(str(entry["answer"]))) <= Fraction(1, 10_000)


def same_word(answer: str, entry: Mapping[str, Any]) -> bool:
    """Check game_of_life_halting, whose scorer compares truth values, although every text is true."""
    return answer.strip().casefold() == str(entry["answer"]).casefold()


def same_numbers(answer: str, entry: Mapping[str, Any]) -> bool:
    """Check puzzle24, whose scorer accepts any numbers."""
    return sorted(map(int, re.findall(r"\d+", answer))) == sorted(entry["metadata"]["numbers"])


def is_expanded(answer: str, entry: Mapping[str, Any]) -> bool:
    """Check polynomial_multiplication, whose scorer would add and multiply the numbers in 2*3*x + 2*5*x."""
    if not POLYNOMIAL.fullmatch(answer.strip()):
        return False
    return len(TERM.findall(answer)) == len(TERM.findall(str(entry["answer"])))


EXTRA_CHECKS: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "coin_flip": same_fraction,
    "game_of_life_halting": same_word,
    "polynomial_multiplication": is_expanded,
    "puzzle24": same_numbers,
}
"""Conditions without which an answer scores 0, whatever the scorer says."""
