"""Fields of request bodies: readers that raise RequestError, and server-sent events. Shared by the dialects."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from turnwise.core.messages import ContentPart, ImagePart, Role, TextPart, ToolSpec
from turnwise.gateway.chat import RequestError
from turnwise.gateway.request_body import MAX_MESSAGES, MAX_TOOLS, check_count
from turnwise.tools.call_formats import THINK_END, THINK_START

MOST_ITEMS = {"tools": MAX_TOOLS, "functions": MAX_TOOLS, "messages": MAX_MESSAGES, "input": 2 * MAX_MESSAGES}
"""Longest lists. Items of `input` become messages or parts of messages; the others of a request have no limit here."""


def read_list(body: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list of the request; empty if it is missing or null."""
    items = body.get(name)
    if items is None:
        return []
    if not isinstance(items, list):
        raise RequestError(name, "must be a list")
    if name in MOST_ITEMS:
        check_count(name, len(items), MOST_ITEMS[name], "items")
    return items


def read_object(value: Any, param: str) -> Mapping[str, Any]:
    """Return `value`, which must be a JSON object."""
    if not isinstance(value, dict):
        raise RequestError(param, "must be an object")
    return value


def read_text(value: Any, param: str) -> str:
    """Return `value`, which must be text. `parse_json` refused what UTF-8 cannot encode."""
    if not isinstance(value, str):
        raise RequestError(param, "must be text")
    return value


def read_role(row: Mapping[str, Any], roles: Mapping[str, Role], param: str) -> Role:
    """Return the role of a message; `roles` maps the dialect's roles to ours."""
    role = row.get("role")
    if not isinstance(role, str) or role not in roles:
        raise RequestError(f"{param}.role", f"must be one of {', '.join(roles)}")
    return roles[role]


def read_number(body: Mapping[str, Any], name: str) -> float | None:
    """Return a finite number of the request; None if it is missing or null."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(name, "must be a number")
    try:
        return float(value)
    except OverflowError:  # `parse_json` refused other numbers that are not finite
        raise RequestError(name, "must be a finite number") from None


def read_stop(value: Any, param: str) -> tuple[str, ...]:
    """Return stop strings, given as one text, a list or null."""
    if value is None:
        return ()
    stops = value if isinstance(value, list) else [value]
    return tuple(stop for stop in (read_text(stop, param) for stop in stops) if stop)


def read_image(url: str, param: str) -> ImagePart:
    """Return the image of a data URL. The gateway does not fetch others."""
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64") or not comma:
        raise RequestError(param, "must be a data URL with base64: the gateway does not fetch images")
    return image_from_base64(data, param)


def image_from_base64(data: str, param: str) -> ImagePart:
    """Return the image of a base64 text."""
    try:
        return ImagePart(data=base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        raise RequestError(param, "is not valid base64") from None


def read_tool(function: Any, param: str) -> ToolSpec:
    """Return a tool from the object that has its name, description and parameters."""
    function = read_object(function, param)
    return ToolSpec(
        name=read_text(function.get("name"), f"{param}.name"),
        description=read_text(function.get("description") or "", f"{param}.description"),
        parameters=read_object(
            function.get("parameters") or {"type": "object", "properties": {}}, f"{param}.parameters"
        ),
    )


def read_count(body: Mapping[str, Any], name: str, most: int | None = None) -> int | None:
    """Return a positive integer of the request; None if it is missing or null."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        raise RequestError(name, f"must be an integer from 1 to {most}" if most else "must be a positive integer")
    return value


def refuse(body: Mapping[str, Any], name: str, instead: str) -> None:
    """Raise RequestError if the request sets a field that the gateway cannot honour."""
    if body.get(name):
        raise RequestError(name, f"is not supported: {instead}")


def join_texts(parts: Sequence[ContentPart]) -> tuple[ContentPart, ...]:
    """Merge consecutive texts, with a line break between them, and drop empty ones."""
    shown = [part for part in parts if not isinstance(part, TextPart) or part.text]
    merged: list[ContentPart] = []
    for _, group in groupby(shown, key=lambda part: isinstance(part, TextPart)):
        same = list(group)
        texts = [part.text for part in same if isinstance(part, TextPart)]
        merged += [TextPart(text="\n".join(texts))] if texts else same
    return tuple(merged)


def add_thinking(thinking: str, parts: Sequence[ContentPart]) -> tuple[ContentPart, ...]:
    """Put the thinking of an assistant message before its text, as models write it."""
    return (
        join_texts([TextPart(text=f"{THINK_START}\n{thinking}\n{THINK_END}\n"), *parts]) if thinking else tuple(parts)
    )


def sse(data: Mapping[str, Any], event: str = "") -> bytes:
    """Return one server-sent event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
