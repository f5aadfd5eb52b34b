"""List of the built-in environments, from `catalogue.toml`. Imports none of them, so that listing is instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from turnwise.files.package_data import load_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvEntry:
    """Copy of what the class declares; a test keeps both equal."""

    entry_point: str
    """module:Class."""
    summary: str
    """First line of the class's docstring."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Optional dependencies: module -> package to install."""
    target: str = ""
    """Parameter that NAME:VALUE sets, as in gymnasium:Taxi-v4; empty if there is none."""


def install_command(needs: Mapping[str, str]) -> str | None:
    """Return the command that installs missing packages; None if none is missing. Imports nothing."""
    missing = [package for module, package in needs.items() if find_spec(module) is None]
    return f"pip install {' '.join(missing)}" if missing else None


CATALOGUE: dict[str, EnvEntry] = {
    name: EnvEntry(**fields) for name, fields in load_toml("turnwise.envs", "catalogue.toml").items()
}


def split_target(target: str) -> tuple[str, dict[str, str]] | None:
    """Split NAME or NAME:VALUE into a built-in environment and its parameter; None for anything else."""
    name, colon, value = target.partition(":")
    entry = CATALOGUE.get(name)
    if entry is None or (colon and not (entry.target and value)):
        return None
    return name, {entry.target: value} if colon else {}
