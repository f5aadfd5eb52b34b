"""A placement as text: `place 5 at row 2 col 3`, or `2,3,5`."""

import re

LONGEST = 100
"""Characters; more than any placement needs."""
IN_WORDS = re.compile(r"place\s+(?P<digit>\d+)\s+at\s+row\s+(?P<row>\d+)\s+col(?:umn)?\s+(?P<col>\d+)", re.I | re.A)
IN_SHORT = re.compile(r"(?P<row>\d+)\s*,\s*(?P<col>\d+)\s*,\s*(?P<digit>\d+)", re.A)


def read(text: str, size: int) -> tuple[int, int]:
    """Cell and digit, 0 for none; a ValueError if the text names no cell or digit of a board of this size."""
    found = len(text) <= LONGEST and (IN_WORDS.fullmatch(text) or IN_SHORT.fullmatch(text))
    if not found:
        raise ValueError("no placement")
    row, col, digit = int(found["row"]), int(found["col"]), int(found["digit"])
    if not (1 <= row <= size and 1 <= col <= size and digit <= size):
        raise ValueError("no such cell or digit")
    return (row - 1) * size + col - 1, digit


def written(cell: int, digit: int, size: int) -> str:
    """The short form: a third fewer tokens, and the cell is chosen before its digit."""
    return f"{cell // size + 1},{cell % size + 1},{digit}"
