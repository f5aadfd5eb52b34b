"""Settings come from a TOML file and dotted overrides; what does not fit is one clear line, before anything starts."""

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

from turnwise.config.keys import FREE_TABLES, Key, all_keys, find_key, unknown_key
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.section import is_plain
from turnwise.core.suggestions import suggest

Settings = Mapping[str, Any]
"""Nested tables as a TOML file gives them; what is left out has its default."""
Overrides = Sequence[tuple[str, Any]]
"""Dotted key and value, in the order given: the last of a key counts. Text is read as on the command line."""

CONFIG_FILE = "config.toml"
RETIRED = ("system.deterministic", "rollout.top_p", "rollout.top_k")
"""Keys that earlier versions wrote into every config.toml, and that no longer exist."""

log = logging.getLogger(__name__)


def build(settings: Settings, overrides: Overrides = ()) -> Config:
    """The configuration of these settings, with the overrides on top."""
    merged = copy.deepcopy(dict(settings))
    for name, given in overrides:
        _place(merged, name, given)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise UserError(explain(error)) from None


def _place(settings: dict[str, Any], name: str, given: Any) -> None:
    """Puts one override into the nested tables. `-` reads as `_`, but in tables whose keys are not ours."""
    if name.startswith(tuple(f"{table}." for table in FREE_TABLES)):
        path, parse = name.split("."), parse_free
    else:
        key = find_key(name.replace("-", "_"))
        path, parse = key.name.split("."), partial(parse_value, key)
    table = settings
    for depth, part in enumerate(path[:-1]):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UserError(f"{name} cannot be set: {'.'.join(path[: depth + 1])} is a value, not a table")
    table[path[-1]] = parse(given) if isinstance(given, str) else given


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, not yet checked against the schema."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is no valid TOML: {error}") from None
    _restore_none(settings)
    return settings


def read_saved_settings(path: Path) -> dict[str, Any]:
    """Return the settings that an earlier command saved with `to_toml`, without the keys retired since then."""
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
    return settings


@cache  # one file may be read several times by one command
def _report_retired(path: Path, names: str) -> None:
    log.warning("note: ignored settings that no longer exist in %s: %s", path, names)


def _restore_none(settings: dict[str, Any]) -> None:
    for key in all_keys().values():
        table = settings.get(key.section, {}) if key.section else settings
        if key.may_hold_none and isinstance(table, dict) and key.last in table:
            table[key.last] = unspell_none(table[key.last])


def to_toml(config: Config) -> str:
    """All settings as TOML, defaults too: what a later release changes does not change an old run."""
    settings = config.model_dump()
    for key in all_keys().values():
        table = settings[key.section] if key.section else settings
        if key.may_hold_none:
            table[key.last] = spell_none(table[key.last])
    text = tomli_w.dumps(settings)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"a setting holds text that is no Unicode: {error.object[error.start : error.end]!r}") from None
    return text


def save_toml(config: Config, path: Path) -> None:
    """Writes the configuration aside and renames it, so that a half-written one is never read."""
    aside = path.with_name(f".{path.name}.part")
    try:
        aside.write_text(to_toml(config), encoding="utf-8", newline="\n")
        aside.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def find_run(run: str, folder: str = "runs") -> Path:
    """The folder of a run, given its path or its name in the folder of runs."""
    for path in (Path(run), Path(folder) / run):
        if (path / CONFIG_FILE).is_file():
            return path
    names = [path.parent.name for path in Path(folder).glob(f"*/{CONFIG_FILE}")]
    raise UserError(f'no run "{run}" here or in {folder}/:{suggest(run, names)}')


def read_run(run: str, folder: str = "runs") -> dict[str, Any]:
    """The settings that a run was made with."""
    return read_saved_settings(find_run(run, folder) / CONFIG_FILE)


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
