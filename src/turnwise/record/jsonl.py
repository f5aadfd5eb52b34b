"""JSON Lines: one strict JSON object per line, and any value as JSON."""

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from turnwise.core.errors import UserError

MAX_DEPTH = 32
MAX_REPR = 1000
"""Characters of the text that replaces a value without a JSON form."""
MAX_ARRAY = 1024
"""Largest array that is stored as a list; larger ones, such as images, become a short text."""
MAX_INT_BITS = 4096
"""Longer integers are written in hexadecimal: Python limits the length of decimal ones."""


_UNCHANGED = (str, bool, type(None))
_LISTS = (list, tuple)


def encode_row(row: Mapping[str, Any]) -> bytes:
    """Encode one line without its newline. Floats are exact, and there is never a bare `NaN`.

    pydantic's encoder writes floats several times faster than `json`. It rejects unpaired surrogates, which occur in
    text that was cut inside a character; `json` escapes them.
    """
    try:
        return to_json(row, inf_nan_mode="strings")
    except PydanticSerializationError:
        return json.dumps(row, separators=(",", ":"), allow_nan=False).encode("ascii")


def replace_nonfinite(row: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinities, which JSON lacks, by null; the key `nonfinite` lists where they were."""
    names: list[str] = []
    finite = {key: _null_nonfinite(value, key, names) for key, value in row.items()}
    return {**finite, "nonfinite": names} if names else finite


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
    """Return every row with its line as written. A last line without a newline is ignored.

    Any other unreadable line is an error that names it.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise UserError(f"Cannot read {path} ({error.strerror}).") from error
    return [(line + b"\n", _decode(line, path, number)) for number, line in enumerate(lines, start=1)]


def _decode(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} line {number} is not JSON. Restore the file, or delete that line.") from error
    if not isinstance(row, dict):
        raise UserError(f"{path} line {number} is not a JSON object. Restore the file, or delete that line.")
    return row


def drop_partial_line(path: Path) -> None:
    """Truncate the file after its last newline. A kill may leave a partial line there."""
    if not path.exists():
        return
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.truncate(path, end)


def to_json_value(value: Any, depth: int = 0) -> Any:
    """Convert any value to JSON values: tuples to lists, unknown types to a short text. Never raises."""
    if isinstance(value, _UNCHANGED):
        return value
    if isinstance(value, float):
        return to_json_number(value)
    if isinstance(value, int):
        return value if value.bit_length() <= MAX_INT_BITS else hex(value)[:MAX_REPR]
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        return {_key(key): to_json_value(inner, depth + 1) for key, inner in value.items()}
    if depth < MAX_DEPTH and isinstance(value, _LISTS):
        return [to_json_value(inner, depth + 1) for inner in value]
    if _is_of_numpy(value) and value.size <= MAX_ARRAY:
        return to_json_value(value.tolist(), MAX_DEPTH - value.ndim)
    return _short_text(value)


def to_json_number(value: float) -> float | str:
    """Return a finite number unchanged, any other as a text that `float` reads back."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def to_json_numbers(values: Sequence[float]) -> Sequence[float | str]:
    return values if math.isfinite(sum(values)) else [to_json_number(value) for value in values]


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(to_json_value(key, MAX_DEPTH))


def _short_text(value: Any) -> str:
    """Return the start of the repr; of a container that is nested too deeply, only its type."""
    return type(value).__name__ if isinstance(value, Mapping | list | tuple) else repr(value)[:MAX_REPR]


def _is_of_numpy(value: Any) -> bool:
    """Return whether the value is an array or a number of numpy, which takes long to import: who has one, has it."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic | numpy.ndarray)
