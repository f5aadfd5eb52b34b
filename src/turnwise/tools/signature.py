"""A tool's JSON schema as a short signature, for prompts where the schema would be too long.

    quote(city, nights: integer = 1, unit: "C"|"F", by?: number)

Arguments without a type are strings; those with a default or a question mark are optional. Servers' schemas can be
arbitrarily nested: below a list or a union, only the outermost type is shown.
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.core.messages import ToolSpec
from turnwise.text.truncation import shorten

MAX_CHARS = 60
"""Characters shown of a type or a default."""
MAX_CHOICES = 8
EXAMPLES = {"string": "...", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
"""Values in an example call, by type."""

Schema = Mapping[str, Any]


def format_signature(spec: ToolSpec) -> str:
    required, definitions = spec.parameters.get("required", []), spec.parameters.get("$defs", {})
    arguments = [
        _format_argument(name, schema, definitions, required=name in required)
        for name, schema in spec.parameters.get("properties", {}).items()
    ]
    return f"{spec.name}({', '.join(arguments)})"


def example_arguments(spec: ToolSpec) -> dict[str, Any]:
    """Example values for the required arguments, or for all if none is required."""
    properties, definitions = spec.parameters.get("properties", {}), spec.parameters.get("$defs", {})
    names = spec.parameters.get("required", []) or list(properties)
    return {name: _example(_choices(properties.get(name, {}), definitions)[0]) for name in names}


def random_arguments(spec: ToolSpec, rng: random.Random, words: Sequence[str]) -> dict[str, Any]:
    """Random values for the required arguments, or for all if none is required. Strings are some of `words`."""
    properties, definitions = spec.parameters.get("properties", {}), spec.parameters.get("$defs", {})
    names = spec.parameters.get("required", []) or list(properties)
    return {name: _random(_choices(properties.get(name, {}), definitions)[0], rng, words) for name in names}


def sole_text_argument(spec: ToolSpec) -> str | None:
    """Name of the only required argument, if it is a string."""
    properties, required = spec.parameters.get("properties", {}), spec.parameters.get("required", [])
    names = required or list(properties)
    is_text = len(names) == 1 and properties.get(names[0], {}).get("type") == "string"
    return names[0] if is_text else None


def _format_argument(name: str, schema: Schema, definitions: Schema, *, required: bool) -> str:
    types = "|".join(dict.fromkeys(_format_type(choice, definitions) for choice in _choices(schema, definitions)))
    default = schema.get("default")
    mark = "?" if not required and default is None else ""
    annotation = "" if types == "string" else f": {shorten(types, MAX_CHARS)}"
    return f"{name}{mark}{annotation}" + (f" = {shorten(_json(default), MAX_CHARS)}" if default is not None else "")


def _choices(schema: Schema, definitions: Schema) -> list[Schema]:
    """Members of a union without null; otherwise the schema itself."""
    schema = _resolve(schema, definitions)
    members = [member for key in ("anyOf", "oneOf") for member in schema.get(key, ()) if isinstance(member, Mapping)]
    resolved = [_resolve(member, definitions) for member in members[:MAX_CHOICES]]
    return [member for member in resolved if member.get("type") != "null"] or [schema]


def _resolve(schema: Schema, definitions: Schema) -> Schema:
    """Follow a `$ref` into the tool's own `$defs`, as used for enumerations."""
    target = definitions.get(str(schema.get("$ref", "")).removeprefix("#/$defs/"))
    return target if isinstance(target, Mapping) else schema


def _format_type(schema: Schema, definitions: Schema) -> str:
    items = schema.get("items")
    if schema.get("type") == "array" and isinstance(items, Mapping):
        return f"list of {_type_name(_resolve(items, definitions))}"
    return _type_name(schema)


def _type_name(schema: Schema) -> str:
    """The JSON type, or the allowed values of an enumeration."""
    if "enum" in schema or "const" in schema:
        return "|".join(map(_json, schema.get("enum", [schema.get("const")])))
    types = schema.get("type", "any")
    return types if isinstance(types, str) else "|".join(name for name in types if name != "null")


def _example(schema: Schema) -> Any:
    if "const" in schema or schema.get("enum"):
        return schema["const"] if "const" in schema else schema["enum"][0]
    types = schema.get("type", "string")
    return EXAMPLES.get(types if isinstance(types, str) else next(iter(types), ""), "...")


def _random(schema: Schema, rng: random.Random, words: Sequence[str]) -> Any:
    if schema.get("enum"):
        return rng.choice(list(schema["enum"]))
    match _example(schema):
        case bool():
            return rng.random() < 0.5
        case int():
            return rng.randint(0, 10)
        case float():
            return round(rng.uniform(0, 10), 1)
        case "..." if words:
            return rng.choice(words)
        case other:
            return other


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
