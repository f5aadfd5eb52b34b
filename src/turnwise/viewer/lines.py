"""Lines of JSON that anyone may have written: read strictly, and what is broken is counted, never raised."""

import json
from typing import Any, NoReturn

from pydantic_core import from_json


def read_row(line: bytes) -> dict[str, Any] | None:
    """The object on a line; None where there is none, as on a line with a bare NaN or bytes that are no UTF-8."""
    try:
        row = parse(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def parse(line: bytes) -> Any:
    """Strict JSON. pydantic's parser is several times faster than `json`, which is left with lone surrogates."""
    try:
        return from_json(line, allow_inf_nan=False)
    except ValueError:
        return json.loads(line.decode("utf-8"), parse_constant=_refuse)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def read_number(value: object) -> float:
    """A number as it is stored, "NaN" and "Infinity" included. Raises ValueError for anything else."""
    if isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity"):
        raise ValueError(f"{value[:20]!r} is no number")
    if not isinstance(value, int | float | str):
        raise ValueError(f"{type(value).__name__} is no number")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError("a whole number beyond all floats") from error
