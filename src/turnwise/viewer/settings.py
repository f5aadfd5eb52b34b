"""What a run or an evaluation was asked to do."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.viewer.lines import parse
from turnwise.viewer.root import CONFIG, PLAN, NotThere, Root

MAX_TOML = 4 << 20
MAIN = {"env": {"kind"}, "model": {"name"}, "algo": {"preset", "advantage"}, "train": {"steps"}, "sft": {"demos"}}
"""Tables and keys of the settings that the list of runs shows."""
LINES = re.compile(
    rb"^(?:\[(?P<table>[^]\n]*)\]|(?P<key>kind|name|preset|advantage|steps|demos) = (?P<value>.*))$", re.MULTILINE
)
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

    Only their lines are looked at, where the file has each of them as runs write it, a JSON value; else all of it is
    parsed.
    """
    data = root.read(folder, CONFIG, limit=MAX_TOML)
    table, found = "", dict[str, dict[str, Any]]()
    with suppress(ValueError):  # a value over several lines, or one that is no JSON
        for line in LINES.finditer(data):
            table = table if line["table"] is None else line["table"].decode()
            if line["key"] is not None and (key := line["key"].decode()) in MAIN.get(table, ()):
                found.setdefault(table, {})[key] = parse(line["value"])
        if {name: found[name].keys() for name in found} == MAIN and _is_plain(data):
            return found
    return read_toml(root, folder, CONFIG)


def _is_plain(data: bytes) -> bool:
    """Whether no line is part of a longer text, and no environments are mixed."""
    _, mix, after = data.partition(b"\n[env.mix]\n")
    return bool(mix) and after.lstrip().startswith(b"[") and b'"' * 3 not in data and b"'" * 3 not in data


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
