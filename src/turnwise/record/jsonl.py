"""One strict JSON object a line."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import PydanticSerializationError, to_json

from turnwise.core.errors import UserError


def encode_row(row: Mapping[str, Any]) -> bytes:
    """One line without its newline, exact and strict: floats come back bit by bit, and there is never a bare `NaN`.

    pydantic's encoder writes floats several times faster than `json`, which is left with what UTF-8 cannot hold: lone
    surrogates, as in text that a model broke off within a character.
    """
    try:
        return to_json(row, inf_nan_mode="strings")
    except PydanticSerializationError:
        return json.dumps(row, separators=(",", ":"), allow_nan=False).encode("ascii")


def replace_nonfinite(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity: they become null, and `nonfinite` lists whose they were."""
    names: list[str] = []
    clean = {key: _null_nonfinite(value, key, names) for key, value in row.items()}
    return {**clean, "nonfinite": names} if names else clean


def _null_nonfinite(value: Any, name: str, names: list[str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        names.append(name)
        return None
    if isinstance(value, Mapping):
        return {key: _null_nonfinite(inner, f"{name}.{key}", names) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_null_nonfinite(inner, f"{name}.{index}", names) for index, inner in enumerate(value)]
    return value


def read_jsonl(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Every row, with its line as written. A line counts once its newline is: a half-written last one is dropped.

    Anything unreadable before it is an error that names the line, never skipped.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): make it readable") from error
    return [(line + b"\n", _decode(line, path, number)) for number, line in enumerate(lines, start=1)]


def _decode(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} line {number} is not JSON: restore the file, or delete that line") from error
    if not isinstance(row, dict):
        raise UserError(f"{path} line {number} is no JSON object: restore the file, or delete that line")
    return row


def drop_partial_line(path: Path) -> None:
    """Cuts off what a kill left after the last newline, so that the next append starts a line of its own."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


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


def to_json_value(value: Any, depth: int = 0) -> Any:
    """JSON values come back unchanged (tuples as lists); anything else becomes a short text, never an error."""
    if isinstance(value, _AS_IT_IS):
        return value
    if isinstance(value, float):
        return to_json_number(value)
    if isinstance(value, int):
        return value if value.bit_length() <= MAX_INT_BITS else hex(value)[:MAX_REPR]
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        return {_key(key): to_json_value(inner, depth + 1) for key, inner in value.items()}
    if depth < MAX_DEPTH and isinstance(value, _LISTS):
        return [to_json_value(inner, depth + 1) for inner in value]
    if isinstance(value, _NUMPY) and value.size <= MAX_ARRAY:
        return to_json_value(value.tolist(), MAX_DEPTH - value.ndim)
    return _short_text(value)


def to_json_number(value: float) -> float | str:
    """A finite number as it is, any other as the text that `float` reads back."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def to_json_numbers(values: Sequence[float]) -> Sequence[float | str]:
    return values if math.isfinite(sum(values)) else [to_json_number(value) for value in values]


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(to_json_value(key, MAX_DEPTH))


def _short_text(value: Any) -> str:
    """Of what nests too deep only the type: its repr could be as deep."""
    return type(value).__name__ if isinstance(value, Mapping | list | tuple) else repr(value)[:MAX_REPR]
