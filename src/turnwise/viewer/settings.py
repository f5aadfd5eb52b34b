"""Settings of runs and evaluations, read from their TOML files."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.config.load import to_toml
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.files.run_folders import CONFIG_FILE, EVALUATION_FILE
from turnwise.viewer.json_io import parse_json
from turnwise.viewer.viewed_folder import FileNotServed, ViewedFolder

MAX_TOML = 4 << 20
MAX_DEPTH = 32
"""Levels of tables that are shown: settings of turnwise have four, and a file may have thousands."""
KEY_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
DOTTED_KEY = re.compile(rf"{KEY_PART}(?:[ \t]*+\.[ \t]*+{KEY_PART})*+")
"""Matches whole chains of parts, so that the time of a search grows only with the length of the text."""
MAIN_SETTINGS = {
    "env": {"kind"},
    "model": {"name"},
    "algo": {"preset"},
    "algo.advantage": {"kind"},
    "train": {"steps"},
    "sft": {"demos"},
}
"""Tables and keys that the list of runs shows."""
MAIN_TABLES = {name.encode(): keys for name, keys in MAIN_SETTINGS.items()}
MAIN_LINES = re.compile(
    rb"^(?:\[(?P<table>[^]\n]*)\]|(?P<key>kind|name|preset|steps|demos) = (?P<value>.*))$", re.MULTILINE
)
NONE = "none"
"""TOML spelling of a setting without a value."""


def read_toml(root: ViewedFolder, folder: Path, *parts: str) -> dict[str, Any]:
    data = root.read(folder, *parts, limit=MAX_TOML)
    try:
        return tomllib.loads(DOTTED_KEY.sub(_shorten_key, data.decode("utf-8")))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{'/'.join(parts)} is not valid TOML: {str(error)[:200]}") from error


def _shorten_key(key: re.Match[str]) -> str:
    """Cut a key after MAX_DEPTH parts: tomllib's time grows with the square of their number."""
    if key[0].count(".") < MAX_DEPTH or len(parts := re.findall(KEY_PART, key[0])) <= MAX_DEPTH:
        return key[0]
    return ".".join([*parts[:MAX_DEPTH], '"..."'])


def read_main_settings(root: ViewedFolder, folder: Path) -> dict[str, Any]:
    """Return the settings that the list of runs shows. Parsing all of `config.toml` takes ten times as long.

    Reads only the lines of these settings if all of them are written as turnwise writes them, as one JSON value per
    line; otherwise parses the whole file.
    """
    data = root.read(folder, CONFIG_FILE, limit=MAX_TOML)
    table, settings = b"", dict[str, dict[str, Any]]()
    with suppress(ValueError):  # a value over several lines, or one that is not JSON
        for line in MAIN_LINES.finditer(data):
            name, key, value = line.groups()
            if name is not None:
                table = name
            elif table in MAIN_TABLES and (setting := key.decode()) in MAIN_TABLES[table]:
                settings.setdefault(table.decode(), {})[setting] = parse_json(value)
        if {name: settings[name].keys() for name in settings} == MAIN_SETTINGS and _is_plain(data):
            settings["algo"]["advantage"] = settings.pop("algo.advantage")
            return settings
    return read_toml(root, folder, CONFIG_FILE)


def _is_plain(data: bytes) -> bool:
    """Return whether the file has no text over several lines and no mix of environments."""
    _, mix, after = data.partition(b"\n[env.mix]\n")
    return bool(mix) and after.lstrip().startswith(b"[") and b'"' * 3 not in data and b"'" * 3 not in data


def is_evaluation(folder: Path) -> bool:
    return (folder / EVALUATION_FILE).is_file()


def flatten(settings: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) pairs. Dates, which JSON lacks, become text, and tables below MAX_DEPTH "..."."""
    for name, value in settings.items():
        if isinstance(value, dict) and value and depth < MAX_DEPTH:
            yield from flatten(value, f"{prefix}{name}.", depth + 1)
        elif isinstance(value, dict) and value:
            yield f"{prefix}{name}", "..."
        else:
            yield f"{prefix}{name}", value if isinstance(value, str | int | float | list) else str(value)


def flat_settings(root: ViewedFolder, folder: Path) -> dict[str, Any]:
    """Return a run's settings by dotted key; of an evaluation, its plan and its models' settings.

    With several models, keys start with the name of the model.
    """
    if not is_evaluation(folder):
        return dict(flatten(read_toml(root, folder, CONFIG_FILE)))
    settings = dict(flatten(read_toml(root, folder, EVALUATION_FILE), "evaluation."))
    models = model_names(root, folder)
    for model in models:
        try:
            model_settings = read_toml(root, folder, "models", f"{model}.toml")
        except FileNotServed:
            continue
        settings |= dict(flatten(model_settings, "" if len(models) == 1 else f"{model}."))
    return settings


def settings_and_defaults(root: ViewedFolder, folder: Path) -> dict[str, dict[str, Any]]:
    return {"settings": flat_settings(root, folder), "defaults": dict(default_settings())}


@cache
def default_settings() -> tuple[tuple[str, Any], ...]:
    """Return the defaults by dotted key, spelled as in a run's `config.toml`."""
    return tuple(flatten(tomllib.loads(to_toml(Config()))))


def model_names(root: ViewedFolder, folder: Path) -> tuple[str, ...]:
    """Return the models of an evaluation in the order of its plan."""
    models = read_toml(root, folder, EVALUATION_FILE).get("models")
    tables = models if isinstance(models, list) else []
    names = [table["name"] for table in tables if isinstance(table, dict) and isinstance(table.get("name"), str)]
    return tuple(dict.fromkeys(names))


def get_setting(settings: Mapping[str, Any], *path: str) -> Any:
    """Return a nested setting of an unchecked file; None if it is missing or set to "none"."""
    value: Any = settings
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return None if value == NONE else value
