"""A tool's arguments in a few words, for prompts that have no room for a schema.

    quote(city, nights: integer = 1, unit: "C"|"F", by?: number)

An argument without a type is a text; one with a default or a question mark may be left out. Schemas of servers may be
of any kind and depth: what is nested deeper than a list or a choice is told by its outermost type.
"""

import json
from collections.abc import Mapping
from typing import Any

from turnwise.core.messages import ToolSpec

LONGEST = 60
"""Characters of one type or default."""
MOST_CHOICES = 8
VALUES = {"string": "...", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
"""What an example of a call gives, by type."""

Schema = Mapping[str, Any]


def format_signature(spec: ToolSpec) -> str:
    required, defined = spec.parameters.get("required", []), spec.parameters.get("$defs", {})
    arguments = [
        _argument(name, about, defined, needed=name in required)
        for name, about in spec.parameters.get("properties", {}).items()
    ]
    return f"{spec.name}({', '.join(arguments)})"


def example_arguments(spec: ToolSpec) -> dict[str, Any]:
    """Those that must be given, each with a value of its type; all, where none must."""
    properties, defined = spec.parameters.get("properties", {}), spec.parameters.get("$defs", {})
    names = spec.parameters.get("required", []) or list(properties)
    return {name: _value(_choices(properties.get(name, {}), defined)[0]) for name in names}


def _argument(name: str, about: Schema, defined: Schema, *, needed: bool) -> str:
    kind = "|".join(dict.fromkeys(_type(each, defined) for each in _choices(about, defined)))
    default = about.get("default")
    mark = "?" if not needed and default is None else ""
    typed = "" if kind == "string" else f": {_short(kind)}"
    return f"{name}{mark}{typed}" + (f" = {_short(_json(default))}" if default is not None else "")


def _choices(about: Schema, defined: Schema) -> list[Schema]:
    """Of a union the parts, as far as they are not null; else the schema itself."""
    about = _found(about, defined)
    parts = [each for key in ("anyOf", "oneOf") for each in about.get(key, ()) if isinstance(each, Mapping)]
    found = [_found(each, defined) for each in parts[:MOST_CHOICES]]
    return [each for each in found if each.get("type") != "null"] or [about]


def _found(about: Schema, defined: Schema) -> Schema:
    """The schema that is meant where one names another of the same tool, as that of an enumeration."""
    meant = defined.get(str(about.get("$ref", "")).removeprefix("#/$defs/"))
    return meant if isinstance(meant, Mapping) else about


def _type(about: Schema, defined: Schema) -> str:
    items = about.get("items")
    if about.get("type") == "array" and isinstance(items, Mapping):
        return f"list of {_name(_found(items, defined))}"
    return _name(about)


def _name(about: Schema) -> str:
    """As JSON names it; the values themselves, where only some are allowed."""
    if "enum" in about or "const" in about:
        return "|".join(map(_json, about.get("enum", [about.get("const")])))
    kinds = about.get("type", "any")
    return kinds if isinstance(kinds, str) else "|".join(kind for kind in kinds if kind != "null")


def _value(about: Schema) -> Any:
    if "const" in about or about.get("enum"):
        return about["const"] if "const" in about else about["enum"][0]
    kinds = about.get("type", "string")
    return VALUES.get(kinds if isinstance(kinds, str) else next(iter(kinds), ""), "...")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
