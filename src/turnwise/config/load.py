"""Settings come from a TOML file and dotted overrides; what does not fit is one clear line, before anything starts."""

import copy
import logging
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from turnwise.config.keys import FREE_TABLES, all_keys, find_key
from turnwise.config.problems import explain
from turnwise.config.schema import Config
from turnwise.config.values import parse_free, parse_value, spell_none, unspell_none
from turnwise.core.errors import UserError
from turnwise.core.names import nearest

Settings = Mapping[str, Any]
"""Nested tables as a TOML file gives them; what is left out has its default."""
Overrides = Sequence[tuple[str, Any]]
"""Dotted key and value, in the order given: the last of a key counts. Text is read as on the command line."""

CONFIG_FILE = "config.toml"
RETIRED = ("system.deterministic",)
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
    for name in RETIRED:
        section, _, key = name.partition(".")
        table = settings.get(section)
        if isinstance(table, dict) and key in table:
            del table[key]
            _report_retired(path, name)
    return settings


@cache  # one file may be read several times by one command
def _report_retired(path: Path, name: str) -> None:
    log.warning("note: %s sets %s, which no longer exists: ignored", path, name)


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
    raise UserError(f'no run "{run}" here or in {folder}/:{nearest(run, names)}')


def read_run(run: str, folder: str = "runs") -> dict[str, Any]:
    """The settings that a run was made with."""
    return read_saved_settings(find_run(run, folder) / CONFIG_FILE)
