"""Build configurations from TOML files and dotted overrides, and save them. Errors are one line."""

import copy
import json
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from turnwise.config.keys import (
    FREE_TABLES,
    Key,
    all_keys,
    choice_of,
    describe_schema,
    find_key,
    in_free_table,
    unknown_key_message,
)
from turnwise.config.old_names import REMOVED
from turnwise.config.older_runs import migrate, old_settings
from turnwise.config.schema import Config
from turnwise.config.version import installed_version
from turnwise.core.errors import UserError, read_failure
from turnwise.files.run_folders import CONFIG_FILE, find_run_folder
from turnwise.settings.choice import KIND, LOAD_CODE, ChoiceError
from turnwise.settings.section import Section, quoted_numbers, truth_values_as_numbers
from turnwise.settings.values import NONE_WORDS, decode_none, encode_none, parse_free, parse_list
from turnwise.text.suggestions import suggest
from turnwise.user_code.references import is_reference

Settings = Mapping[str, Any]
"""Nested tables, as in a TOML file; missing settings have their defaults."""
Overrides = Sequence[tuple[str, Any]]
"""Pairs of dotted key and value; the last value of a key counts. Strings are parsed as on the command line."""

PROVENANCE_FILE = "provenance.json"
"""File of a run folder with the version that wrote it."""

log = logging.getLogger(__name__)


def build(settings: Settings, overrides: Overrides = (), *, load_code: bool = False) -> Config:
    """Build a configuration from settings and overrides, which take precedence.

    `load_code`: read the files of the user's losses, advantages and filters, to check their settings.
    """
    merged = expand_choices(copy.deepcopy(dict(settings)))
    chosen = [(name, value) for name, value in overrides if choice_of(name.replace("-", "_"))]
    for name, value in [*chosen, *(each for each in overrides if each not in chosen)]:
        _apply_override(merged, name, value)
    try:
        config = Config.model_validate(merged, context={LOAD_CODE: load_code})
    except ValidationError as error:
        raise UserError(explain(error)) from None
    _check_quotes(settings, config, [name.replace("-", "_") for name, _ in overrides])
    return config


def expand_choices(settings: dict[str, Any]) -> dict[str, Any]:
    """Write each choice as a table with its kind: `loss = "gspo"` is `loss = { kind = "gspo" }`."""
    for key in all_keys().values():
        table = None if key.choice is None else _find_table(settings, key.section)
        if table is not None and isinstance(table.get(key.last), str):
            table[key.last] = {KIND: table[key.last]}
    return settings


def _find_table(settings: dict[str, Any], path: str) -> dict[str, Any] | None:
    """Return the table at a dotted path; None if there is none."""
    table: Any = settings
    for name in path.split(".") if path else []:
        table = table.get(name) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else None


def merge(below: Settings, above: Settings) -> dict[str, Any]:
    """Put settings on top of others, section by section.

    A choice of another kind replaces the one below with all of its settings; one of the same kind keeps them.
    """
    return {**below, **{name: _put_on(name, below.get(name), value) for name, value in above.items()}}


def _put_on(path: str, below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    if (choice := choice_of(path)) is not None:
        kinds = [table.get(KIND, choice.default) for table in (below, above)]
        return {**below, **above} if kinds[0] == kinds[1] or KIND not in above else above
    if "." in path:  # parameters of an environment
        return above
    return {**below, **{name: _put_on(f"{path}.{name}", below.get(name), value) for name, value in above.items()}}


def drop_misfits(below: Settings, above: Settings) -> dict[str, Any]:
    """Omit settings of alternatives that `above` does not choose and `below` has not chosen."""
    kept = copy.deepcopy(dict(above))
    for key in all_keys().values():
        table = _find_table(kept, key.section) if key.kinds else None
        if table is not None and key.last in table and KIND not in table:
            chosen = (_find_table(dict(below), key.section) or {}).get(KIND, all_keys()[key.section].default)
            if chosen not in key.kinds:
                del table[key.last]
    return kept


def _check_quotes(settings: Settings, config: Config, overridden: Sequence[str]) -> None:
    """Reject true as a number, and quoted numbers in a file: on the command line every value is text."""
    for name, value in truth_values_as_numbers(settings, config.model_dump()):
        raise UserError(f"{name} = {str(value).lower()}: must be {_key_of(name).allowed}")
    for name, _ in quoted_numbers(settings, config.model_dump()):
        if not f"{name}.".startswith(tuple(f"{each}." for each in overridden)):
            raise UserError(f"{name} is a text in quotes: must be {_key_of(name).allowed}, without quotes.")


def _key_of(name: str) -> Key:
    """Return the key of a value, which may be an entry of a list."""
    return all_keys().get(name) or find_key(name.rpartition(".")[0])


def _apply_override(settings: dict[str, Any], name: str, value: Any) -> None:
    """Put an override into the nested tables. `-` is read as `_`, except in tables with free keys."""
    plain = name.replace("-", "_")
    if in_free_table(name):
        path, parse = name.split("."), parse_free
    elif _is_of_user_class(settings, plain):
        path, parse = plain.split("."), parse_free
    else:
        key = find_key(plain)
        path, parse = key.name.split("."), partial(parse_value, key)
        if key.choice is not None and isinstance(value, str):
            _choose(settings, key, str(parse_value(key, value)))
            return
    table = settings
    for depth, part in enumerate(path[:-1]):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UserError(f"{name} cannot be set: {'.'.join(path[: depth + 1])} is a value, not a table.")
    table[path[-1]] = parse(value) if isinstance(value, str) else value


def _choose(settings: dict[str, Any], key: Key, kind: str) -> None:
    """Choose an alternative. Those settings that are not of this kind are dropped with the one that had them."""
    table = settings
    for part in key.section.split(".") if key.section else []:
        table = table.setdefault(part, {})
    known = table.get(key.last)
    if not isinstance(known, dict) or known.get(KIND, key.default) != kind:
        table[key.last] = {KIND: kind}


def _is_of_user_class(settings: dict[str, Any], name: str) -> bool:
    """Return whether a setting belongs to an alternative of the user's own, FILE.py:name."""
    table = _find_table(settings, name.rpartition(".")[0]) or {}
    return choice_of(name.rpartition(".")[0]) is not None and is_reference(table.get(KIND))


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings in a TOML file, without validation."""
    return _convert_none(_read_toml(path), decode_none)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{read_failure(path, error)}: give a TOML file of settings.") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    settings = expand_choices(settings)
    for name, field in Config.model_fields.items():
        if isinstance(field.default, Section) and not isinstance(value := settings.get(name, {}), dict):
            raise UserError(f"{path}: {name} = {value!r}: must be a section of settings, under [{name}].")
    return settings


def read_saved_settings(path: Path) -> dict[str, Any]:
    """Read settings written by `to_toml`, perhaps by an earlier version, without the keys that no longer exist."""
    settings = _read_toml(path)
    if removed := [name for name in old_settings(settings) if name in REMOVED]:
        _report_removed(path, ", ".join(removed))
    settings = _convert_none(migrate(settings), decode_none)
    if unknown := _unknown_keys(settings):
        raise UserError(
            f"{path} has the setting {unknown[0]}, which turnwise {installed_version()} does not know. "
            f"{_describe_writer(path)} Use that version, or remove the setting from the file."
        )
    return settings


def is_of_older_version(run: str) -> bool:
    """Return whether an earlier version wrote the configuration of a run, given its path or name."""
    return bool(old_settings(read_settings(find_run_folder(run) / CONFIG_FILE)))


def _unknown_keys(settings: Settings, prefix: str = "") -> list[str]:
    """Return the settings that do not exist; not parameters of environments, nor those of the user's own classes."""
    unknown: list[str] = []
    for name, value in settings.items():
        path = prefix + name
        if isinstance(value, dict) and path not in FREE_TABLES and path != "env":
            unknown += [] if is_reference(value.get(KIND)) else _unknown_keys(value, f"{path}.")
        elif name != KIND and path not in all_keys() and path != "env":
            unknown.append(path)
    return unknown


def _describe_writer(path: Path) -> str:
    """Say which version wrote the file, if the run recorded it."""
    try:
        version = json.loads((path.parent / PROVENANCE_FILE).read_text(encoding="utf-8"))["turnwise"]
    except (OSError, ValueError, KeyError, TypeError):
        return "An unknown version of turnwise wrote it."
    return f"turnwise {version} wrote it."


@cache  # one file may be read several times by one command
def _report_removed(path: Path, names: str) -> None:
    log.warning("note: ignored settings that no longer exist in %s: %s", path, names)


def _convert_none(settings: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Encode or decode None where it may be: in optional settings, and in all of an alternative of the user's own."""
    for key in all_keys().values():
        table = _find_table(settings, key.section)
        if table is None or key.last not in table or (key.kinds and is_reference(table.get(KIND))):
            continue
        value = table[key.last]
        is_own = key.choice is not None and isinstance(value, dict) and is_reference(value.get(KIND))
        if key.may_hold_none or is_own:
            table[key.last] = convert(value)
    return settings


def to_toml(config: Config) -> str:
    """Return all settings as TOML, including defaults: a later release with other defaults does not change the run."""
    text = tomli_w.dumps(_convert_none(config.model_dump(), encode_none))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"A setting contains text that is not valid Unicode: {error.object[error.start : error.end]!r}"
        ) from None
    return text


def read_run(run: str) -> dict[str, Any]:
    """Read the settings of a run, given its path or name."""
    return read_saved_settings(find_run_folder(run) / CONFIG_FILE)


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
        error = detail["ctx"]["error"]
        if isinstance(error, ChoiceError):
            problems = [_explain_choice(error, each) for each in error.error.errors(include_url=False)]
            return "; ".join(dict.fromkeys(problems))
        return str(error)
    key = all_keys().get(name) or all_keys().get(name.rpartition(".")[0])  # for an item of a list, its index comes last
    if key is not None and key.is_list_of_tables and isinstance(detail["input"], Mapping):
        return f"{key.name} is a list of tables: write [[{key.name}]] with two brackets, or {key.last} = [{{ ... }}]"
    value = _shorten(detail["input"])
    if key is None:
        return f"{name} = {value}: must be a section of settings"
    return f"{key.name} = {value}: must be {key.allowed}"


def _explain_choice(error: ChoiceError, detail: Mapping[str, Any]) -> str:
    """Describe a problem of the settings of a chosen alternative."""
    name = ".".join([error.setting, *map(str, detail["loc"])])
    if detail["type"] == "missing":
        return f"{error.setting} {error.kind} needs {name}. Give it."
    if detail["type"] == "value_error":
        return f"{error.setting}.{detail['ctx']['error']}"
    if detail["type"] == "extra_forbidden" and name in all_keys():
        choose = error.one_of.spell(all_keys()[name].kinds)
        return f"{name} has no effect with {error.setting} {error.kind}. Remove it, or {choose}."
    if detail["type"] == "extra_forbidden":
        known = [f"{error.setting}.{each}" for each in error.chosen.model_fields]
        return unknown_key_message(name) if error.chosen.name else f"unknown key {name}:{suggest(name, known)}"
    field = str(detail["loc"][0])  # for an item of a list, its index comes last
    if error.chosen.name:
        reason = f"must be {describe_schema(error.chosen.model_json_schema()['properties'][field])}"
    else:  # the user's class may have fields of any type
        reason = f"{detail['msg'][:1].lower()}{detail['msg'][1:]}"
    return f"{error.setting}.{field} = {_shorten(detail['input'])}: {reason}"


def _shorten(value: Any) -> str:
    text = value if isinstance(value, str) and value.isprintable() and value else repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "..."


def parse_value(key: Key, text: str) -> Any:
    """Parse the value of `--KEY TEXT`. Text of the wrong type is returned as it is, for validation to report."""
    if key.optional and text.lower() in NONE_WORDS:
        return None
    if "array" in key.types:
        return parse_list(text)
    if "object" in key.types or ("string" in key.types and text[:1] in ('"', "'")):
        return parse_free(text)
    return text


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse `0,1,2`, the seeds of several runs."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise UserError(f"seeds {text}: must be distinct whole numbers separated by commas, such as 0,1,2.")
    return tuple(int(part) for part in parts)
