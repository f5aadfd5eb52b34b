"""Alternatives of a table by name, with settings that only some of them have."""

from collections.abc import Mapping
from types import new_class
from typing import Any

from turnwise.settings.choice import AnyChoice


def choose(table: Mapping[str, type[AnyChoice]], name: str, **settings: Any) -> AnyChoice:
    """The alternative with those of the settings that it has; constants of its class may be given, too."""
    known = {field for each in table.values() for field in (*each.model_fields, *each.__class_vars__)}
    assert settings.keys() <= known, f"no alternative has {settings.keys() - known}"
    chosen = table[name]
    constants = {name: value for name, value in settings.items() if name in chosen.__class_vars__}
    if constants:
        chosen = new_class(chosen.__name__, (chosen,), {"kind": name}, lambda body: body.update(constants))
    return chosen(**{field: value for field, value in settings.items() if field in chosen.model_fields})
