"""Any value as plain JSON values, whatever an environment put into its `info`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MAX_DEPTH = 32
MAX_REPR = 1000
"""Characters kept of what has no JSON form."""
MAX_ARRAY = 1024
"""Numbers of an array that is kept as a list; a longer one is an image or worse."""
MAX_INT_BITS = 4096
"""Python refuses to write much longer integers in decimal."""


_AS_IT_IS = (str, bool, type(None))
_LISTS = (list, tuple)
_NUMPY = (np.generic, np.ndarray)


def plain(value: Any, depth: int = 0) -> Any:
    """JSON values come back unchanged (tuples as lists); anything else becomes a short text, never an error."""
    if isinstance(value, _AS_IT_IS):
        return value
    if isinstance(value, float):
        return plain_number(value)
    if isinstance(value, int):
        return value if value.bit_length() <= MAX_INT_BITS else hex(value)[:MAX_REPR]
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        return {_key(key): plain(inner, depth + 1) for key, inner in value.items()}
    if depth < MAX_DEPTH and isinstance(value, _LISTS):
        return [plain(inner, depth + 1) for inner in value]
    if isinstance(value, _NUMPY) and value.size <= MAX_ARRAY:
        return plain(value.tolist(), MAX_DEPTH - value.ndim)
    return _short_text(value)


def plain_number(value: float) -> float | str:
    """A finite number as it is, any other as the text that `float` reads back."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def plain_numbers(values: Sequence[float]) -> Sequence[float | str]:
    return values if math.isfinite(sum(values)) else [plain_number(value) for value in values]


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(plain(key, MAX_DEPTH))


def _short_text(value: Any) -> str:
    """Of what nests too deep only the type: its repr could be as deep."""
    return type(value).__name__ if isinstance(value, Mapping | list | tuple) else repr(value)[:MAX_REPR]
