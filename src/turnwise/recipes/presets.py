"""Recipes and published methods, the TOML files beside this module. Imports no settings and no environment."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.text.suggestions import closest_match, suggest

RECIPES = Path(__file__).parent
METHODS = RECIPES / "algos"
MODELS = RECIPES / "models"
"""Default settings by model, for targets that are not recipes."""
GRPO = "grpo"
"""The default algo.advantage, of which no preset has the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Settings of a published method, put on top of a recipe's with `--algo.preset NAME`."""

    name: str
    summary: str
    """First line of the file's opening comment."""
    text: str
    """Contents of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Method):
    """Preset of settings for `turnwise train NAME`."""

    environment: str


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def recipe_path(name: str) -> Path:
    return RECIPES / f"{name}.toml"


def list_recipes() -> list[Recipe]:
    return [find_recipe(name) for name in recipe_names()]


def find_recipe(name: str) -> Recipe:
    names = recipe_names()
    if name not in names:
        raise UserError(f'Unknown recipe "{name}":{suggest(name, names)} (`turnwise recipes` lists them).')
    text = recipe_path(name).read_text(encoding="utf-8")
    return Recipe(name=name, summary=_first_comment(text), environment=tomllib.loads(text)["env"]["kind"], text=text)


def method_names() -> list[str]:
    return sorted(path.stem for path in METHODS.glob("*.toml"))


def method_path(name: str) -> Path:
    return METHODS / f"{name}.toml"


def find_method(name: str) -> Method:
    if name not in method_names():
        if closest_match(name, [GRPO, *method_names()]) == GRPO:
            raise UserError(
                f'Unknown algo.preset "{name}": GRPO is the default. Remove it, or set algo.advantage grpo.'
            )
        raise UserError(f'Unknown algo.preset "{name}":{suggest(name, method_names())}')
    text = method_path(name).read_text(encoding="utf-8")
    return Method(name=name, summary=_first_comment(text), text=text)


def _first_comment(text: str) -> str:
    return text.partition("\n")[0].removeprefix("#").strip()
