"""Units, words and number bases in mathematical answers, which math-verify ignores."""

import re
from collections.abc import Container

TEXT = re.compile(r"\\(?:text[a-z]*|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[A-Za-z]*\}")
FRACTION = re.compile(r"\\[cdt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
ONLY_TOP = re.compile(r"\\[cdt]?frac\s*\{([^{}]*)\}\s*\{\s*\}")
COMMAND = re.compile(r"\\[A-Za-z]+")
MARK = "\x00"
"""Prefix of words that were in \\text{...}, and of a letter that follows a number and nothing else."""
POWER = r"\^\s*(?:\{\s*)?([+-]?[0-9]+)\s*\}?"
LAST_LETTER = re.compile(rf"^(\s*-?[\s0-9.,{{}}$]*)([A-Za-z])(?=\s*(?:{POWER})?\s*$)")
WORD = rf"(?:{MARK}[A-Za-z]+|(?<![A-Za-z{MARK}\\])[A-Za-z]+)(?![A-Za-z])(?!\s*\()"
UNIT = re.compile(rf"(/|\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|[*·])?[\s(]*({WORD})[\s)]*(?:{POWER})?")
"""A word with its exponent and what it is joined by. A word before a parenthesis is a function: \\text{lcm}(4, 6)."""
DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|°|\\degree\b")
DEGREE = ("degrees", 1)
CURRENCIES = {r"\$": "dollars", "€": "euros", "£": "pounds"}
SUBSCRIPT = re.compile(r"(?<=[0-9])\s*_\s*(\{[^{}]*\}|.)")
CONNECTIVES = {"and", "or"}
SUPERSCRIPTS = str.maketrans({"²": "^2", "³": "^3"})

Units = set[tuple[str, int]]
"""Words and units with their exponents: {(m, 1), (s, -2)} for m/s^2."""


def conflicts(text: str, expected: str) -> bool:
    """Return whether two texts differ in ways that math-verify ignores: words, units and number bases.

    A unit on one side only is ignored, as in TRL and verl.
    """
    units, expected_units = read_units(text), read_units(expected)
    if DEGREES.search(text) and DEGREES.search(expected):
        units, expected_units = units - {DEGREE}, expected_units - {DEGREE}  # 68^\circ\text{F} and 68^\circ
    return (bool(units and expected_units) and units != expected_units) or _bases(text) != _bases(expected)


def read_units(text: str) -> Units:
    bare = COMMAND.sub(" ", FRACTION.sub(r"(\1)/(\2)", ENVIRONMENT.sub(" ", _mark_words(text))))
    bare = LAST_LETTER.sub(rf"\1{MARK}\2", bare)
    units = {
        (name, (-1 if joined == "/" else 1) * int(exponent[:4] or 1))
        for joined, word, exponent in UNIT.findall(bare)
        if (name := word.strip(MARK).lower()) not in CONNECTIVES and len(word) > 1
    }
    if not units:
        units = {(name, 1) for sign, name in CURRENCIES.items() if sign in text}
    return units or ({DEGREE} if DEGREES.search(text) else set())


def strip_units(text: str, other: str, kept: Container[str]) -> str:
    """Remove units, words but those in `kept`, and signs of percent and currencies.

    One or two letters may be variables: they are kept unless they are in \\text{...} here or in the `other` text.
    """
    text, other = _mark_words(DEGREES.sub(" ", text)), _mark_words(other)
    marked = {word.lower() for word in re.findall(rf"{MARK}([A-Za-z]+)", text + other)}

    def replace(match: re.Match[str]) -> str:
        word = match[2].lower()
        return " " if word[0] == MARK or word in marked or (len(word) > 2 and word not in kept) else match[0]

    text = UNIT.sub(replace, text)
    for sign in (*CURRENCIES, r"\%", "%"):
        text = text.replace(sign, " ")
    return SUBSCRIPT.sub("", ONLY_TOP.sub(r"\1", text))


def _mark_words(text: str) -> str:
    text = text.replace(MARK, " ").translate(SUPERSCRIPTS)
    text = TEXT.sub(lambda words: f" {re.sub(r'(?<![A-Za-z])(?=[A-Za-z])', MARK, words[1])} ", text)
    return re.sub(rf"{MARK}?(?<![A-Za-z])per(?![A-Za-z])", "/", text)


def _bases(text: str) -> set[str]:
    return {base.strip("{} ") for base in SUBSCRIPT.findall(text)}
