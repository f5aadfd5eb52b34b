"""Data files that are installed beside turnwise's modules: word lists, tables, templates."""

import tomllib
from importlib import resources
from typing import Any


def read_data(package: str, name: str) -> str:
    """Return the text of the file `name` in the folder of a package."""
    return (resources.files(package) / name).read_text(encoding="utf-8")


def load_toml(package: str, name: str) -> dict[str, Any]:
    """Return the tables of a TOML file in the folder of a package, in the order of the file."""
    return tomllib.loads(read_data(package, name))
