"""What a run or an evaluation was asked to do."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.view.root import CONFIG, PLAN, NotThere, Root

MAX_TOML = 4 << 20
NONE = "none"
"""How a setting that holds nothing is spelled in TOML."""


def read_toml(root: Root, folder: Path, *parts: str) -> dict[str, Any]:
    data = root.read(folder, *parts, limit=MAX_TOML)
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{'/'.join(parts)} is no TOML: {str(error)[:200]}") from error


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
