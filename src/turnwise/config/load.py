"""Build configurations from TOML files and dotted overrides, and save them. Errors are one line."""

import copy
import json
import logging
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from turnwise.config.keys import Key, all_keys, find_key, in_free_table, unknown_key_message
from turnwise.config.schema import Config
from turnwise.config.version import installed_version
from turnwise.core.errors import UserError, read_failure
from turnwise.core.section import is_plain, quoted_numbers
from turnwise.files.run_folders import CONFIG_FILE, find_run_folder

Settings = Mapping[str, Any]
"""Nested tables, as in a TOML file; missing settings have their defaults."""
Overrides = Sequence[tuple[str, Any]]
"""Pairs of dotted key and value; the last value of a key counts. Strings are parsed as on the command line."""

PROVENANCE_FILE = "provenance.json"
"""File of a run folder with the version that wrote it."""
RETIRED = ("system.deterministic", "rollout.top_p", "rollout.top_k")
"""Keys that earlier versions wrote into every config.toml, and that no longer exist."""

log = logging.getLogger(__name__)


def build(settings: Settings, overrides: Overrides = ()) -> Config:
    """Build a configuration from settings and overrides, which take precedence."""
    merged = copy.deepcopy(dict(settings))
    for name, value in overrides:
        _apply_override(merged, name, value)
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        raise UserError(explain(error)) from None
    _check_quotes(settings, config, [name.replace("-", "_") for name, _ in overrides])
    return config


def _check_quotes(settings: Settings, config: Config, overridden: Sequence[str]) -> None:
    """Reject quoted numbers in a file. Overrides are exempt: on the command line every value is text."""
    for name, _ in quoted_numbers(settings, config.model_dump()):
        if not f"{name}.".startswith(tuple(f"{each}." for each in overridden)):
            key = all_keys().get(name) or find_key(name.rpartition(".")[0])
            raise UserError(f"{name} is a text in quotes: must be {key.allowed}, without quotes")


def _apply_override(settings: dict[str, Any], name: str, value: Any) -> None:
    """Put an override into the nested tables. `-` is read as `_`, except in tables with free keys."""
    if in_free_table(name):
        path, parse = name.split("."), parse_free
    else:
        key = find_key(name.replace("-", "_"))
        path, parse = key.name.split("."), partial(parse_value, key)
    table = settings
    for depth, part in enumerate(path[:-1]):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UserError(f"{name} cannot be set: {'.'.join(path[: depth + 1])} is a value, not a table")
    table[path[-1]] = parse(value) if isinstance(value, str) else value


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings in a TOML file, without validation."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{read_failure(path, error)}: give a TOML file of settings") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    _restore_none(settings)
    return settings


def read_saved_settings(path: Path) -> dict[str, Any]:
    """Read settings written by `to_toml`, perhaps by an earlier version, without the keys that no longer exist."""
    settings = read_settings(path)
    retired = []
    for name in RETIRED:
        section, _, key = name.partition(".")
        table = settings.get(section)
        if isinstance(table, dict) and key in table:
            del table[key]
            retired.append(name)
    if retired:
        _report_retired(path, ", ".join(retired))
    if unknown := _unknown_keys(settings):
        raise UserError(
            f"{path} has the setting {unknown[0]}, which turnwise {installed_version()} does not know. "
            f"{_describe_writer(path)} Use that version, or remove the setting from the file."
        )
    return settings


def _unknown_keys(settings: Settings) -> list[str]:
    """Return the settings that do not exist; not those of env, whose other keys are parameters."""
    tables = {name: table for name, table in settings.items() if isinstance(table, dict) and name != "env"}
    names = [f"{section}.{key}" for section, table in tables.items() for key in table]
    names += [name for name, value in settings.items() if not isinstance(value, dict)]
    return [name for name in names if name not in all_keys()]


def _describe_writer(path: Path) -> str:
    """Say which version wrote the file, if the run recorded it."""
    try:
        version = json.loads((path.parent / PROVENANCE_FILE).read_text(encoding="utf-8"))["turnwise"]
    except (OSError, ValueError, KeyError, TypeError):
        return "An unknown version of turnwise wrote it."
    return f"turnwise {version} wrote it."


@cache  # one file may be read several times by one command
def _report_retired(path: Path, names: str) -> None:
    log.warning("note: ignored settings that no longer exist in %s: %s", path, names)


def _restore_none(settings: dict[str, Any]) -> None:
    for key in all_keys().values():
        table = settings.get(key.section, {}) if key.section else settings
        if key.may_hold_none and isinstance(table, dict) and key.last in table:
            table[key.last] = decode_none(table[key.last])


def to_toml(config: Config) -> str:
    """Return all settings as TOML, including defaults: a later release with other defaults does not change the run."""
    settings = config.model_dump()
    for key in all_keys().values():
        table = settings[key.section] if key.section else settings
        if key.may_hold_none:
            table[key.last] = encode_none(table[key.last])
    text = tomli_w.dumps(settings)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"a setting contains text that is not valid Unicode: {error.object[error.start : error.end]!r}"
        ) from None
    return text


def read_run(run: str, folder: str = "runs") -> dict[str, Any]:
    """Read the settings of a run, given its path or name."""
    return read_saved_settings(find_run_folder(run, folder) / CONFIG_FILE)


MAX_SHOWN = 3
MAX_VALUE_CHARS = 60


def explain(error: ValidationError) -> str:
    """Describe the first few problems of a configuration, and how to fix them, in one line."""
    problems = list(dict.fromkeys(_explain_one(detail) for detail in error.errors(include_url=False)))
    more = len(problems) - MAX_SHOWN
    return "; ".join(problems[:MAX_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _explain_one(detail: Mapping[str, Any]) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return unknown_key_message(name)
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    key = all_keys().get(name) or all_keys().get(name.rpartition(".")[0])  # for an item of a list, its index comes last
    if key is not None and key.is_list_of_tables and isinstance(detail["input"], Mapping):
        return f"{key.name} is a list of tables: write [[{key.name}]] with two brackets, or {key.last} = [{{ ... }}]"
    value = _shorten(detail["input"])
    if key is None:
        return f"{name} = {value}: must be a section of settings"
    return f"{key.name} = {value}: must be {key.allowed}"


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) and value.isprintable() and value else repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "..."


NONE_WORDS = ("none", "null")
NONE = NONE_WORDS[0]


def parse_value(key: Key, text: str) -> Any:
    """Parse the value of `--KEY TEXT`. Text of the wrong type is returned as it is, for validation to report."""
    if key.optional and text.lower() in NONE_WORDS:
        return None
    if "array" in key.types:
        return parse_list(text)
    if "object" in key.types or ("string" in key.types and text[:1] in ('"', "'")):
        return parse_free(text)
    return text


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


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse `0,1,2`, the seeds of several runs."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise UserError(f"seeds {text}: must be distinct whole numbers separated by commas, such as 0,1,2")
    return tuple(int(part) for part in parts)


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
