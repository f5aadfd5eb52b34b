"""Numbers in rows of metrics. Imports no torch."""

from typing import Any

LARGEST = 1e100
"""Differences of larger numbers may overflow."""


def finite_number(value: Any) -> float | None:
    """Return a number of a row as a float; None for text, null, NaN, infinities and numbers beyond LARGEST."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) <= LARGEST else None
