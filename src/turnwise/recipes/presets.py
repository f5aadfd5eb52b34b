"""Presets: one TOML file each, recipes beside this one, methods under algos/."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.core.names import nearest

FOLDER = Path(__file__).parent
METHODS = FOLDER / "algos"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    name: str
    summary: str
    """The comment that opens its file."""
    environment: str
    text: str
    """The file as it is."""


def recipe_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def list_recipes() -> list[Recipe]:
    return [find_recipe(name) for name in recipe_names()]


def find_recipe(name: str) -> Recipe:
    """The preset of this name; an unknown one is an error that names the nearest."""
    names = recipe_names()
    if name not in names:
        raise UserError(f'unknown recipe "{name}":{nearest(name, names)} (`turnwise recipes` lists them)')
    text = recipe_path(name).read_text(encoding="utf-8")
    summary = text.partition("\n")[0].removeprefix("#").strip()
    return Recipe(name=name, summary=summary, environment=tomllib.loads(text)["env"]["kind"], text=text)


def recipe_path(name: str) -> Path:
    return FOLDER / f"{name}.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A published method: settings that are put on top of a recipe's, as `--algo.preset NAME`."""

    name: str
    summary: str
    text: str


def method_names() -> list[str]:
    return sorted(path.stem for path in METHODS.glob("*.toml"))


def find_method(name: str) -> Method:
    if name not in method_names():
        raise UserError(f'unknown algo.preset "{name}":{nearest(name, method_names())}')
    text = method_path(name).read_text(encoding="utf-8")
    return Method(name=name, summary=text.partition("\n")[0].removeprefix("#").strip(), text=text)


def method_path(name: str) -> Path:
    return METHODS / f"{name}.toml"
