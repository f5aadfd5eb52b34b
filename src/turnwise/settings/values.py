"""Values as text: on the command line, and None in TOML, which has no null."""

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

from turnwise.settings.section import is_plain

NONE_WORDS = ("none", "null")
NONE = NONE_WORDS[0]


def parse_free(text: str) -> Any:
    """Parse none, or a TOML or JSON value (8, 0.5, true, [1, 2], {a = 1}, "8"); anything else is a string."""
    if text.lower() in NONE_WORDS:
        return None
    for parse in (_parse_toml, json.loads):
        found, value = _try_parse(parse, text)
        if found and is_plain(value):
            return value
    return text


def parse_list(text: str) -> Any:
    """Parse `a,b`, or a TOML or JSON list."""
    stripped = text.strip()
    if stripped.startswith("["):
        return parse_free(stripped)
    return [part.strip() for part in stripped.split(",")] if stripped else []


def _parse_toml(text: str) -> Any:
    document = tomllib.loads(f"value = {text}")
    if len(document) > 1:
        raise ValueError("more than one value")
    return document["value"]


def _try_parse(parse: Callable[[str], Any], text: str) -> tuple[bool, Any]:
    try:
        return True, parse(text)
    except (ValueError, RecursionError):
        return False, None


def encode_none(value: Any) -> Any:
    """Replace None by the string "none" for TOML, which has no null, and quote strings that read "none"."""
    if isinstance(value, dict):
        return {key: encode_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode_none(item) for item in value]
    if isinstance(value, str) and re.fullmatch(f"'*{NONE}'*", value):
        return f"'{value}'"
    return NONE if value is None else value


def decode_none(value: Any) -> Any:
    """Undo `encode_none`."""
    if isinstance(value, dict):
        return {key: decode_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode_none(item) for item in value]
    if isinstance(value, str) and re.fullmatch(f"'+{NONE}'+", value):
        return value[1:-1]
    return None if value == NONE else value
