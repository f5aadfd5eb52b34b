"""Assertions that all contract tests share."""

import math
from typing import Any


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def expect(holds: bool, rule: str) -> None:
    if not holds:
        raise AssertionError(rule)
