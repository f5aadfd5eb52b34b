"""From pydantic's errors to one line that a person can act on."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from turnwise.config.keys import all_keys, unknown_key

MAX_SHOWN = 3
MAX_VALUE_CHARS = 60


def explain(error: ValidationError) -> str:
    """The first few problems of a configuration in one line, each with its mend."""
    problems = list(dict.fromkeys(_explain_one(detail) for detail in error.errors(include_url=False)))
    more = len(problems) - MAX_SHOWN
    return "; ".join(problems[:MAX_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _explain_one(detail: Mapping[str, Any]) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return unknown_key(name)
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    key = all_keys().get(name) or all_keys().get(name.rpartition(".")[0])  # of a list, the item's place comes last
    if key is not None and key.of_tables and isinstance(detail["input"], Mapping):
        return f"{key.name} is a list of tables: write [[{key.name}]] with two brackets, or {key.last} = [{{ ... }}]"
    given = _short(detail["input"])
    if key is None:
        return f"{name} = {given}: must be a section of settings"
    return f"{key.name} = {given}: must be {key.allowed}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) and value.isprintable() and value else repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "..."
