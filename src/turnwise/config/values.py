"""Values as text: what an override means, and how a TOML file, which has no none, spells none.

Scalars of an override are left to pydantic, which knows each field's type.
"""

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

from turnwise.config.keys import Key
from turnwise.config.section import is_plain
from turnwise.core.errors import UserError

NONE_WORDS = ("none", "null")
NONE = NONE_WORDS[0]


def parse_value(key: Key, text: str) -> Any:
    """What `--KEY TEXT` means. Text that does not fit is passed on as it is: validation then names what is allowed."""
    if key.optional and text.lower() in NONE_WORDS:
        return None
    if "array" in key.types:
        return _parse_list(text)
    if "object" in key.types or ("string" in key.types and text[:1] in ('"', "'")):
        return parse_free(text)
    return text


def parse_free(text: str) -> Any:
    """none, or a TOML or JSON value (8, 0.5, true, [1, 2], {a = 1}, "8"); anything else is text as it stands."""
    if text.lower() in NONE_WORDS:
        return None
    for parse in (_parse_toml, json.loads):
        found, value = _attempt(parse, text)
        if found and is_plain(value):
            return value
    return text


def _parse_list(text: str) -> Any:
    """`a,b` or a TOML or JSON list."""
    stripped = text.strip()
    if stripped.startswith("["):
        return parse_free(stripped)
    return [part.strip() for part in stripped.split(",")] if stripped else []


def _parse_toml(text: str) -> Any:
    document = tomllib.loads(f"value = {text}")
    if len(document) > 1:
        raise ValueError("more than one value")
    return document["value"]


def _attempt(parse: Callable[[str], Any], text: str) -> tuple[bool, Any]:
    try:
        return True, parse(text)
    except (ValueError, RecursionError):
        return False, None


def parse_seeds(text: str) -> tuple[int, ...]:
    """`0,1,2`: seeds of several runs."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise UserError(f"--seeds {text}: must be different whole numbers with commas between them, such as 0,1,2")
    return tuple(int(part) for part in parts)


def spell_none(value: Any) -> Any:
    """For a TOML file: none becomes the word none, and text that reads like that word goes into quotes."""
    if isinstance(value, dict):
        return {key: spell_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [spell_none(item) for item in value]
    if isinstance(value, str) and re.fullmatch(f"'*{NONE}'*", value):
        return f"'{value}'"
    return NONE if value is None else value


def unspell_none(value: Any) -> Any:
    """Undoes `spell_none`."""
    if isinstance(value, dict):
        return {key: unspell_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unspell_none(item) for item in value]
    if isinstance(value, str) and re.fullmatch(f"'+{NONE}'+", value):
        return value[1:-1]
    return None if value == NONE else value
