"""A configuration for people: all of it, and what differs from the defaults."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from turnwise.config.keys import FREE_TABLES, all_keys
from turnwise.config.schema import Config


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
