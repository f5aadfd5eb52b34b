"""Settings by dotted name (`algo.clip_high`): default, help text and allowed values."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from turnwise.config.foreign_names import find_foreign_name
from turnwise.config.old_names import REMOVED, RENAMED
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.settings.choice import KIND, Choice, OneOf
from turnwise.settings.section import Section
from turnwise.text.suggestions import closest_match

FREE_TABLES = ("env.params", "env.mix")
"""Tables with free keys: parameters of the environment, and further environments."""


def in_free_table(name: str) -> bool:
    return name.startswith(tuple(f"{table}." for table in FREE_TABLES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A setting. `schema` is its JSON schema, with its type and bounds."""

    name: str
    default: Any
    doc: str
    schema: Mapping[str, Any]
    choice: OneOf | None = None
    """The alternatives, if the setting chooses one; their settings are keys below it."""
    kinds: tuple[str, ...] = ()
    """Alternatives of `parent` that have it; () for a setting that always exists."""

    @property
    def section(self) -> str:
        """Name of its section; empty for a setting of the run itself, such as seed."""
        return self.name.rpartition(".")[0]

    @property
    def last(self) -> str:
        """Name within its section."""
        return self.name.rpartition(".")[2]

    @property
    def option(self) -> str:
        """Command-line option; a table with free keys takes a name."""
        return f"--{self.name}.NAME" if self.name in FREE_TABLES else f"--{self.name}"

    @property
    def types(self) -> frozenset[str]:
        """JSON types of its values: "string", "number", "null", ..."""
        return frozenset(choice["type"] for choice in self.schema.get("anyOf", (self.schema,)))

    @property
    def optional(self) -> bool:
        return "null" in self.types

    @property
    def may_hold_none(self) -> bool:
        """True if its value can be None or, in a table with free keys, contain None."""
        return self.optional or self.is_list_of_tables or self.name in FREE_TABLES

    @property
    def is_list_of_tables(self) -> bool:
        items = self.schema.get("items", {})
        return any(choice.get("type") == "object" for choice in items.get("anyOf", (items,)))

    def merge(self, other: "Key") -> "Key":
        """Return the key of the alternatives of both. Its schema allows what that of either does."""
        values = self._schemas
        values += [schema for schema in other._schemas if schema not in values]
        schema = self.schema if len(values) == len(self._schemas) else {"anyOf": values}
        return replace(self, kinds=(*self.kinds, *other.kinds), schema=schema)

    @property
    def _schemas(self) -> list[Mapping[str, Any]]:
        """The alternatives of its schema, without names and defaults."""
        names = ("title", "description", "default")
        schemas = self.schema.get("anyOf", (self.schema,))
        return [{name: value for name, value in schema.items() if name not in names} for schema in schemas]

    @property
    def allowed(self) -> str:
        return self.choice.describe() if self.choice else describe_schema(self.schema)


@cache
def all_keys() -> dict[str, Key]:
    """Return every setting by its dotted name, in the order of the sections."""
    keys: dict[str, Key] = {}
    for key in walk(Config, prefix=""):
        known = keys.get(key.name)
        keys[key.name] = key if known is None else known.merge(key)
    return keys


def walk(section: type[Section], prefix: str, kinds: tuple[str, ...] = ()) -> Iterator[Key]:
    """Yield the settings of a section, and those of each alternative of its choices."""
    schema = section.model_json_schema(mode="validation")
    for name, field in section.model_fields.items():
        path, doc = prefix + name, field.description or ""
        choice = next((each for each in field.metadata if isinstance(each, OneOf)), None)
        if choice is not None:
            yield Key(
                name=path, default=field.default.kind, doc=doc, schema={"type": "string"}, choice=choice, kinds=kinds
            )
            for kind, chosen in choice.table.items():
                yield from walk(chosen, f"{path}.", (kind,))
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from walk(field.annotation, f"{path}.")
        else:
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            yield Key(name=path, default=default, doc=doc, schema=schema["properties"][name], kinds=kinds)


def choice_of(name: str) -> Key | None:
    """Return the choice that a setting chooses (algo.loss, also spelt algo.loss.kind); None for other settings."""
    key = all_keys().get(name.removesuffix(f".{KIND}"))
    return key if key is not None and key.choice is not None else None


def find_key(name: str, spell: Callable[[str], str] = str) -> Key:
    """Return the setting with this name; UserError with a suggestion if there is none.

    `spell` writes a setting as the caller would type it.
    """
    keys = all_keys()
    if name in keys:
        return keys[name]
    if (choice := choice_of(name)) is not None:
        return choice
    in_section = [key.name for key in keys.values() if key.section == name]
    if in_section:
        raise UserError(f"{name} is a section: give one of its keys, such as {spell(in_section[0])}")
    raise UserError(unknown_key_message(name, spell))


def unknown_key_message(name: str, spell: Callable[[str], str] = str) -> str:
    """Return `unknown key algo.clip_hi: did you mean ...?`, or for a name of another library the setting here."""
    if name in RENAMED:
        return f"unknown key {name}: it is now {spell(RENAMED[name])}"
    if name in REMOVED:
        return f"{name} no longer exists. {REMOVED[name][1]}"
    is_ours = "." in name and any(key.last == name.rpartition(".")[2] for key in all_keys().values())
    if not is_ours and (found := find_foreign_name(name)) is not None:
        return f"unknown key {name}: use {spell(found[0])} ({found[1]})"
    similar = " or ".join(f'"{spell(key)}"' for key in similar_keys(name))
    fix = f"did you mean {similar}?" if similar else "`turnwise train --help-all` lists them"
    return f"unknown key {name}: {fix}"


def similar_keys(name: str) -> list[str]:
    """Return the key that is spelt with `_` for a dot, else those of the same name in other sections, else the most
    similar section or key.
    """
    keys, wanted = all_keys(), name
    if dotted := [key for key in keys if key.replace(".", "_") == name]:
        return dotted
    if "." not in name:
        sections = {key.partition(".")[0] for key in keys}
        wanted = closest_match(name, sections | {key.last for key in keys.values()}) or name
        if wanted in sections:
            return [wanted]
    same_name = [key.name for key in keys.values() if key.last == wanted.rpartition(".")[2]]
    closest = closest_match(name, keys)
    return same_name or ([closest] if closest else [])


def describe_schema(schema: Mapping[str, Any]) -> str:
    """Describe the values that a JSON schema allows: "a number from 0 to 1", "a whole number of 1 or more"."""
    if "anyOf" in schema:
        return ", or ".join(describe_schema(choice) for choice in schema["anyOf"])
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "prefixItems" in schema:
        parts = [describe_schema(item) for item in schema["prefixItems"]]
        return f"{len(parts)} values: " + (f"each {parts[0]}" if len(set(parts)) == 1 else ", then ".join(parts))
    words = {
        "null": "none",
        "boolean": "true or false",
        "string": "text",
        "object": "a table of values",
        "array": "a list" + (f" of {describe_schema(schema['items'])}" if "items" in schema else ""),
        "integer": "a whole number" + _bounds(schema),
        "number": "a number" + _bounds(schema),
    }
    return words[schema["type"]] if "type" in schema else "any value"  # parameters of a user's environment


def _bounds(schema: Mapping[str, Any]) -> str:
    low, above, high, below = (
        _number(schema.get(bound)) for bound in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    )
    if low and high:
        return f" from {low} to {high}"
    bounds = [f"of {low} or more"] if low else [f"above {above}"] if above else []
    bounds += (
        [f"of at most {high}" if not bounds else f"at most {high}"] if high else [f"below {below}"] if below else []
    )
    return f" {' and '.join(bounds)}" if bounds else ""


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Value of a setting in a configuration."""

    key: str
    value: Any
    note: str
    """"default ..." if the value differs from the default; else empty."""


def settings_of(config: Config) -> Iterator[Setting]:
    """Yield every setting in the order of the schema, and each parameter of the environment as its own."""
    for key in all_keys().values():
        parent = _follow(config, key.section)
        if not hasattr(parent, key.last):  # another alternative was chosen
            continue
        value: Any = getattr(parent, key.last)
        value = value.kind if isinstance(value, Choice) else value
        if key.name in FREE_TABLES:
            table: Mapping[str, Any] = value
            yield from (Setting(key=f"{key.name}.{name}", value=each, note="given") for name, each in table.items())
        else:
            default = _default(type(parent), key)
            note = "" if value == default else f"default {show_value(default)}"
            yield Setting(key=key.name, value=value, note=note)


def _default(section: type[Section], key: Key) -> Any:
    """Return the default in this section: alternatives may have settings of one name with different defaults."""
    field = section.model_fields[key.last]
    default = key.default if field.is_required() else field.get_default(call_default_factory=True)
    return default.kind if isinstance(default, Choice) else default


def _follow(config: Config, path: str) -> Any:
    value: Any = config
    for name in path.split(".") if path else []:
        value = getattr(value, name)
    return value


def difference(config: Config) -> list[Setting]:
    """Return the settings that differ from their defaults."""
    return [setting for setting in settings_of(config) if setting.note]


def describe(config: Config) -> str:
    """Return one line per setting, with its default if it differs, and a blank line between sections."""
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
    """Return a value as it can be typed after its key."""
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
