"""Tool calls in the text of an action: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

import json
import re
from collections.abc import Iterator

from turnwise.core.messages import ToolCall

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_ARGUMENTS = ("arguments", "parameters")


def read_call(text: str, call_id: str) -> ToolCall | None:
    """The call that `text` states, or None. Its arguments stay as they were written; it never raises."""
    try:
        members = dict(_members(text))
        name = json.loads(members.get("name", "null"))
        raw = next((members[key] for key in _ARGUMENTS if key in members), "{}")
        arguments = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict | str):
        return None
    return ToolCall(name=name, arguments=arguments if isinstance(arguments, str) else raw, call_id=call_id)


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Keys of the one JSON object in `text`, each with its value's own text."""
    at = _expect(text, _skip(text, 0), "{")
    while True:
        key, at = _DECODER.raw_decode(text, at)
        if not isinstance(key, str):
            raise ValueError("a key must be a string")
        begin = _skip(text, _expect(text, _skip(text, at), ":"))
        _, end = _DECODER.raw_decode(text, begin)
        yield key, text[begin:end]
        at = _skip(text, end)
        if text[at : at + 1] == "}":
            break
        at = _expect(text, at, ",")
    if text[at + 1 :].strip():
        raise ValueError("text after the object")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, sign: str) -> int:
    """The place behind `sign` and the space after it."""
    if text[at : at + 1] != sign:
        raise ValueError(f"expected {sign}")
    return _skip(text, at + 1)
