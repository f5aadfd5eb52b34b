"""Base class and value types of the sections of a configuration."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from turnwise.settings.needs import Lack, Need, Package

Idle = Mapping[str, tuple[str, str]]
"""Settings of a section that have no effect -> (the setting that causes it, with its value; how to change that)."""


class Section(BaseModel):
    """Settings that belong together. Checks of their numbers are its validators."""

    uses: ClassVar[Mapping[str, str | tuple[str, ...]]] = {}
    """Settings that have an effect only with capabilities of `needs.py`."""

    def idle(self) -> Idle:
        """Return the settings that have no effect with the values of the section's others."""
        return {}

    def needs(self) -> list[Need]:
        """Return what these settings need from others."""
        return []

    def lacks(self) -> dict[str, Lack]:
        """Return the capabilities that these settings take away from others."""
        return {}

    def packages(self) -> list[Package]:
        """Return the optional packages that these settings need."""
        return []

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def is_plain(value: Any) -> bool:
    """Return whether TOML can store a value: text, finite numbers, booleans, None, and lists and tables of these."""
    if isinstance(value, list):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


def quoted_numbers(given: Any, read: Any) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, text) of texts in `given` that pydantic read as numbers or truth values: "8" for 8.

    Most such quotes are mistakes, and in a table with free keys the same text would stay text.
    """
    for name, value, other in _values(given, read):
        if isinstance(value, str) and isinstance(other, int | float):
            yield name, value


def truth_values_as_numbers(given: Any, read: Any) -> Iterator[tuple[str, bool]]:
    """Yield (dotted name, value) of truth values in `given` that pydantic read as numbers: true for 1."""
    for name, value, other in _values(given, read):
        if isinstance(value, bool) and isinstance(other, int | float) and not isinstance(other, bool):
            yield name, value


def _values(given: Any, read: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted name, value in `given`, value in `read`)."""
    if isinstance(given, Mapping) and isinstance(read, Mapping):
        for name, value in given.items():
            yield from _values(value, read.get(name), f"{path}.{name}" if path else str(name))
    elif isinstance(given, list | tuple) and isinstance(read, list | tuple):
        for index, (value, other) in enumerate(zip(given, read, strict=False)):
            yield from _values(value, other, f"{path}.{index}")
    else:
        yield path, given, read


Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]
