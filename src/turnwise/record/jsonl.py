"""One strict JSON object a line."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from turnwise.core.errors import UserError


def encode(row: Mapping[str, Any]) -> bytes:
    """One line without its newline, exact and strict: floats come back bit by bit, and there is never a bare `NaN`.

    pydantic's encoder writes floats several times faster than `json`, which is left with what UTF-8 cannot hold: lone
    surrogates, as in text that a model broke off within a character.
    """
    try:
        return to_json(row, inf_nan_mode="strings")
    except PydanticSerializationError:
        return json.dumps(row, separators=(",", ":"), allow_nan=False).encode("ascii")


def without_nonfinite(row: Mapping[str, Any]) -> dict[str, Any]:
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


def read_lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
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


def drop_half_line(path: Path) -> None:
    """Cuts off what a kill left after the last newline, so that the next append starts a line of its own."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
