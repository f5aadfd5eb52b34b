"""Alternatives of a table by name, with settings that only some of them have."""

from collections.abc import Mapping
from typing import Any

from turnwise.settings.choice import AnyChoice


def choose(table: Mapping[str, type[AnyChoice]], name: str, **settings: Any) -> AnyChoice:
    """The alternative with those of the settings that it has."""
    known = {field for each in table.values() for field in each.model_fields}
    assert settings.keys() <= known, f"no alternative has {settings.keys() - known}"
    fields = table[name].model_fields
    return table[name](**{field: value for field, value in settings.items() if field in fields})
