"""Answers that reasoning-gym's scorers must not see, and marks that they give too easily (as of 0.1.25).

Nine of them evaluate the answer as Python, directly or through sympy: only text that can call nothing and grow nothing
reaches those. Four give full marks without a solution: their marks are checked here.
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
"""Those, names, and small powers, of which none stands on another."""
FUNCTIONS = {"sin", "cos", "tan", "exp", "log", "sqrt", "pi", "asin", "acos", "atan", "sinh", "cosh", "tanh"}
NO_NUMBER = re.compile(r"\b(?:nan|inf|infinity)\b", re.IGNORECASE)
FRACTION = re.compile(r"\d{1,12}(?:\.\d{1,12}|/\d{1,12})?", re.ASCII)


def is_literal(answer: str) -> bool:
    return LITERAL.fullmatch(answer) is not None


def is_arithmetic(answer: str) -> bool:
    return ARITHMETIC.fullmatch(answer) is not None


def is_formula(answer: str) -> bool:
    """Names are single letters or functions: no other is looked up."""
    names = re.findall(r"[A-Za-z]+", answer)
    return FORMULA.fullmatch(answer) is not None and all(len(name) == 1 or name in FUNCTIONS for name in names)


READABLE: dict[str, Callable[[str], bool]] = {
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


def is_readable(task: str, answer: str, right: str | None) -> bool:
    """Whether the scorer of this task may see the answer. No number is as near to every number: unless it is right."""
    if answer == right:
        return True
    return READABLE.get(task, bool)(answer) and not NO_NUMBER.search(answer)


def same_fraction(answer: str, entry: Mapping[str, Any]) -> bool:
    """coin_flip gives a share for equal first digits, so that "0" is right for every chance."""
    text = answer.strip()
    if not FRACTION.fullmatch(text) or text.endswith("/" + "0" * len(text.rpartition("/")[2])):
        return False
    return abs(Fraction(text) - Fraction(str(entry["answer"]))) <= Fraction(1, 10_000)


def same_word(answer: str, entry: Mapping[str, Any]) -> bool:
    """game_of_life_halting compares truth values, and every text is true."""
    return answer.strip().casefold() == str(entry["answer"]).casefold()


def same_numbers(answer: str, entry: Mapping[str, Any]) -> bool:
    """puzzle24 takes any four numbers for the four that are given."""
    return sorted(map(int, re.findall(r"\d+", answer))) == sorted(entry["metadata"]["numbers"])


DESERVED: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "coin_flip": same_fraction,
    "game_of_life_halting": same_word,
    "puzzle24": same_numbers,
}
"""What must hold of an answer besides the scorer's marks, for it to have any."""
