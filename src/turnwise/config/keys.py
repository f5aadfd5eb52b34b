"""The dotted names of all settings (`algo.clip_high`), with what each allows, in words."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.suggestions import closest_match, suggest

FREE_TABLES = ("env.params", "env.mix")
"""The tables whose keys are not ours: an environment's own parameters, and further environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting. `schema` is its JSON schema, which holds type and bounds in one place."""

    name: str
    default: Any
    doc: str
    schema: Mapping[str, Any]

    @property
    def section(self) -> str:
        """The table that holds it; empty at the top."""
        return self.name.rpartition(".")[0]

    @property
    def last(self) -> str:
        """Its name inside its section."""
        return self.name.rpartition(".")[2]

    @property
    def types(self) -> frozenset[str]:
        """JSON types that it takes: "string", "number", "null", ..."""
        return frozenset(choice["type"] for choice in self.schema.get("anyOf", (self.schema,)))

    @property
    def optional(self) -> bool:
        return "null" in self.types

    @property
    def may_hold_none(self) -> bool:
        """Itself or, in tables whose keys are not ours, somewhere inside."""
        return self.optional or self.of_tables or self.name in FREE_TABLES

    @property
    def of_tables(self) -> bool:
        """A list of them."""
        return bool(self.schema.get("items", {}).get("type") == "object")

    @property
    def allowed(self) -> str:
        return in_words(self.schema)


@cache
def all_keys() -> dict[str, Key]:
    """Every setting by its dotted name, in the order of the schema."""
    schema = Config.model_json_schema()
    return {key.name: key for key in _walk(schema, schema["$defs"], Config().model_dump(), prefix="")}


def _walk(schema: Mapping[str, Any], shared: Mapping[str, Any], defaults: Any, prefix: str) -> Iterator[Key]:
    for name, field in schema["properties"].items():
        if "$ref" in field:
            section = shared[field["$ref"].rpartition("/")[2]]
            yield from _walk(section, shared, defaults[name], prefix=f"{prefix}{name}.")
        else:
            doc = field.get("description", "")
            yield Key(name=prefix + name, default=defaults[name], doc=doc, schema=field)


def find_key(name: str) -> Key:
    """The setting of this name; an unknown one is an error that names the nearest."""
    keys = all_keys()
    if name in keys:
        return keys[name]
    inside = [key.name for key in keys.values() if key.section == name]
    if inside:
        raise UserError(f"{name} is a section: give one of its keys, such as {inside[0]}")
    raise UserError(unknown_key(name))


def unknown_key(name: str) -> str:
    """`unknown key algo.clip_hi: did you mean ...`"""
    meant = " or ".join(f'"{key}"' for key in meant_keys(name))
    mend = f"did you mean {meant}?" if meant else "`turnwise train --help-all` lists them"
    return f"unknown key {name}: {mend}"


def meant_keys(name: str) -> list[str]:
    """What a mistyped key probably means: the same word in other sections, else the nearest section or key."""
    keys = all_keys()
    same_word = [key.name for key in keys.values() if key.last == name.rpartition(".")[2]]
    at_the_top = {name.partition(".")[0] for name in keys} if "." not in name else ()
    near = closest_match(name, at_the_top) or closest_match(name, keys)
    return same_word or ([near] if near else [])


def in_words(schema: Mapping[str, Any]) -> str:
    """What a JSON schema allows: "a number from 0 to 1", "a whole number of 1 or more"."""
    if "anyOf" in schema:
        return ", or ".join(in_words(choice) for choice in schema["anyOf"])
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if "prefixItems" in schema:
        parts = [in_words(item) for item in schema["prefixItems"]]
        return f"{len(parts)} values: " + (f"each {parts[0]}" if len(set(parts)) == 1 else ", then ".join(parts))
    words = {
        "null": "none",
        "boolean": "true or false",
        "string": "text",
        "object": "a table of values",
        "array": "a list" + (f" of {in_words(schema['items'])}" if "items" in schema else ""),
        "integer": "a whole number" + _bounds(schema),
        "number": "a number" + _bounds(schema),
    }
    return words[schema["type"]]


def _bounds(schema: Mapping[str, Any]) -> str:
    low, above, high = (_number(schema.get(bound)) for bound in ("minimum", "exclusiveMinimum", "maximum"))
    if low and high:
        return f" from {low} to {high}"
    if low:
        return f" of {low} or more"
    if above:
        return f" above {above}" + (f" and at most {high}" if high else "")
    return f" of at most {high}" if high else ""


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


SECRETS = ("key", "api_key", "token", "secret", "password")
"""Options that nobody has, since a recipe is saved and shown."""
Options = TypeVar("Options")


def read_options(kind: type[Options], given: Mapping[str, Any], what: str, besides: Iterable[str] = ()) -> Options:
    """`given` as `kind`, a pydantic model or a dataclass; else a UserError in one line.

    It never says what a value was: somebody may have written a key where the name of its variable belongs. `besides`:
    what the same table may say, and others have read.
    """
    known = names_of(kind)
    for name in given:
        if name not in known:
            raise UserError(_unknown(name, what, [*known, *besides]))
    try:
        return TypeAdapter(kind).validate_python(dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        raise UserError(f'{what} lacks its option "{name}": give {name} = ...') from None
    said = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    raise UserError(f"{what}{f', {name}' if name else ''}: {said[:1].lower()}{said[1:]}") from None


def names_of(kind: Any) -> list[str]:
    """The options that it has."""
    return [field.name for field in fields(kind)] if is_dataclass(kind) else list(kind.model_fields)


def _unknown(name: str, what: str, known: Iterable[str]) -> str:
    if name.lower() in SECRETS:
        return f'{what} takes no "{name}": recipes are saved; name its variable with key_env'
    return f'{what} has no option "{name}":{suggest(name, known)}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as it stands."""

    key: str
    value: Any
    note: str
    """What the default would be, where the value differs from it."""


def settings_of(config: Config) -> Iterator[Setting]:
    """Every setting in the order of the schema; the environment's own parameters one by one."""
    tables = config.model_dump()
    for key in all_keys().values():
        value = (tables[key.section] if key.section else tables)[key.last]
        if key.name in FREE_TABLES:
            own = value.items()
            yield from (Setting(key=f"{key.name}.{name}", value=given, note="given") for name, given in own)
        else:
            note = "" if value == key.default else f"default {show_value(key.default)}"
            yield Setting(key=key.name, value=value, note=note)


def difference(config: Config) -> list[Setting]:
    """What differs from the defaults."""
    return [setting for setting in settings_of(config) if setting.note]


def describe(config: Config) -> str:
    """One line a setting, a blank line between sections, with the default beside what differs from it."""
    lines: list[str] = []
    section = next(iter(all_keys())).partition(".")[0]
    for setting in settings_of(config):
        if setting.key.partition(".")[0] != section:
            lines.append("")
        section = setting.key.partition(".")[0]
        line = f"{setting.key} = {show_value(setting.value)}"
        lines.append(f"{line:<40} # {setting.note}" if setting.note else line)
    return "\n".join(lines)


def show_value(value: Any) -> str:
    """As it may be typed after the key."""
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
