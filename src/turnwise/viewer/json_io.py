"""JSON in both directions: strict reading of lines that may be broken, and responses of the server."""

import gzip
import json
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

from fastapi import Request, Response
from pydantic_core import PydanticSerializationError, from_json, to_json

from turnwise.record.jsonl import replace_nonfinite

COMPRESS_FROM = 4096
"""Bytes from which a response is compressed; it may travel over a slow forwarded port."""


def read_row(line: bytes) -> dict[str, Any] | None:
    """Return the object on a line, or None if it is not strict JSON in UTF-8, e.g. contains a bare NaN."""
    try:
        row = parse_json(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def parse_json(text: bytes) -> Any:
    """Parse strict JSON. pydantic's parser is several times faster than `json`, which handles unpaired surrogates."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return json.loads(text.decode("utf-8"), parse_constant=_reject_constant)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_number(value: object) -> float:
    """Return a stored number; "NaN" and "Infinity" are stored as text. Raises ValueError for anything else."""
    if isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity"):
        raise ValueError(f"{value[:20]!r} is not a number")
    if not isinstance(value, int | float | str):
        raise ValueError(f"{type(value).__name__} is not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError("the integer is too large for a float") from error


def encode_json(payload: Mapping[str, Any], nonfinite: Literal["strings", "null"] = "strings") -> bytes:
    """Encode as JSON without bare NaN. Text with unpaired surrogates, which UTF-8 cannot hold, is escaped."""
    try:
        return to_json(payload, inf_nan_mode=nonfinite)
    except PydanticSerializationError:
        return json.dumps(replace_nonfinite(payload), allow_nan=False).encode("ascii")


def json_response(request: Request, body: bytes) -> Response:
    headers = {"Vary": "Accept-Encoding"}
    if len(body) >= COMPRESS_FROM and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, compresslevel=1)
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type="application/json", headers=headers)


def error_response(status: int, text: str) -> Response:
    line = " ".join(text.split())
    return Response(encode_json({"error": line}), status_code=status, media_type="application/json")
