"""What a run or an evaluation was asked to do."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.view.root import CONFIG, PLAN, NotThere, Root

MAX_TOML = 4 << 20
MAIN = {
    *((b"env", b"kind"), (b"model", b"name"), (b"algo", b"preset"), (b"algo", b"advantage")),
    *((b"train", b"steps"), (b"sft", b"demos")),
}
"""Tables and keys of the settings that the list of runs shows."""
LINES = re.compile(rb"^(?:\[(?P<table>[^]\n]*)\]|(?P<key>kind|name|preset|advantage|steps|demos) = .*)$", re.M)
PLAIN = re.compile(rb"^\[env\.mix\]\n\s*^\[", re.M)
"""The table of mixed environments, empty."""
MULTILINE = re.compile(rb"\'{3}|\"{3}")
NONE = "none"
"""How a setting that holds nothing is spelled in TOML."""


def read_toml(root: Root, folder: Path, *parts: str) -> dict[str, Any]:
    data = root.read(folder, *parts, limit=MAX_TOML)
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{'/'.join(parts)} is no TOML: {str(error)[:200]}") from error


def read_main_settings(root: Root, folder: Path) -> dict[str, Any]:
    """The settings of a run that its row in the list shows: parsing all of `config.toml` takes ten times as long.

    Only their lines are parsed, where the file has each of them once as runs write it; else all of it is.
    """
    data = root.read(folder, CONFIG, limit=MAX_TOML)
    table, lines = b"", dict[tuple[bytes, bytes], bytes]()
    for found in LINES.finditer(data):
        table = found["table"] or table
        if found["key"] is not None and (table, found["key"]) in MAIN:
            lines[table, found["key"]] = found[0]
    if lines.keys() == MAIN and PLAIN.search(data) and not MULTILINE.search(data):
        with suppress(ValueError):  # such as a list over several lines
            return tomllib.loads("\n".join(f"{key[0].decode()}.{line.decode()}" for key, line in lines.items()))
    return read_toml(root, folder, CONFIG)


def is_evaluation(folder: Path) -> bool:
    return (folder / PLAN).is_file()


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys, as they are typed. Dates, which JSON lacks, as text."""
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str | int | float | list) else str(value)


def flat_settings(root: Root, folder: Path) -> dict[str, Any]:
    """Of a run: its settings. Of an evaluation: its plan and its models' settings; of several, under their names."""
    if not is_evaluation(folder):
        return dict(flat(read_toml(root, folder, CONFIG)))
    settings = dict(flat(read_toml(root, folder, PLAN), "evaluation."))
    models = model_names(root, folder)
    for model in models:
        try:
            own = read_toml(root, folder, "models", f"{model}.toml")
        except NotThere:
            continue
        settings |= dict(flat(own, "" if len(models) == 1 else f"{model}."))
    return settings


def model_names(root: Root, folder: Path) -> tuple[str, ...]:
    """The models of an evaluation, in the order in which they were asked for."""
    models = read_toml(root, folder, PLAN).get("models")
    listed = models if isinstance(models, list) else []
    names = [each["name"] for each in listed if isinstance(each, dict) and isinstance(each.get("name"), str)]
    return tuple(dict.fromkeys(names))


def dig(settings: Mapping[str, Any], *path: str) -> Any:
    """A setting of tables that anyone may have written; None where it is not there, or says none."""
    value: Any = settings
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return None if value == NONE else value
