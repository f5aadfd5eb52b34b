"""Whether an answer is the number that was asked for: exact, whatever way it is written. Nothing is run as code."""

import re
from fractions import Fraction

from turnwise.envs.countdown.expression import parse, value_of

LONGEST = 200
BOXED = re.compile(r"^\\boxed\{(.*)\}$")
FRACTION = re.compile(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")
DECIMAL = re.compile(r"^[0-9]*\.[0-9]+$|^[0-9]+\.$")
GROUPED = re.compile(r"(?<=[0-9])[,_\s](?=[0-9]{3}(?:[^0-9]|$))")
CLOSE = Fraction(1, 10**6)
"""How near a decimal must come to a number that has no end in decimals, of its size."""


def exact(text: str) -> Fraction | None:
    """The value of a number, a fraction or an expression of them; None for anything else."""
    text = text.strip().strip("$").strip().rstrip(".") if not DECIMAL.match(text.strip()) else text.strip()
    if len(text) > LONGEST:
        return None
    if boxed := BOXED.match(text):
        text = boxed[1].strip()
    text = FRACTION.sub(r"(\1)/(\2)", text)
    text = GROUPED.sub("", text).replace("−", "-")
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-").strip()
    try:
        return sign * (Fraction(text) if DECIMAL.match(text) else value_of(parse(text)))
    except ValueError:
        return None


def equal(text: str, wanted: Fraction) -> bool:
    found = exact(text)
    if found is None:
        return False
    return found == wanted or ("." in text and abs(found - wanted) <= CLOSE * max(Fraction(1), abs(wanted)))
