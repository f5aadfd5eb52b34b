"""What the server answers: JSON that every browser reads, packed where it is long."""

import gzip
import json
from collections.abc import Mapping
from typing import Any, Literal

from fastapi import Request, Response
from pydantic_core import PydanticSerializationError, to_json

from turnwise.record.jsonl import replace_nonfinite

PACK_FROM = 4096
"""Bytes from which an answer is packed: over a forwarded port the line is slower than that."""


def encode_answer(payload: Mapping[str, Any], nonfinite: Literal["strings", "null"] = "strings") -> bytes:
    """JSON without a bare NaN; text that UTF-8 cannot hold, as half a character, is escaped."""
    try:
        return to_json(payload, inf_nan_mode=nonfinite)
    except PydanticSerializationError:
        return json.dumps(replace_nonfinite(payload), allow_nan=False).encode("ascii")


def json_answer(request: Request, body: bytes) -> Response:
    headers = {"Vary": "Accept-Encoding"}
    if len(body) >= PACK_FROM and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, compresslevel=1)
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type="application/json", headers=headers)


def error_answer(status: int, text: str) -> Response:
    line = " ".join(text.split())
    return Response(encode_answer({"error": line}), status_code=status, media_type="application/json")
