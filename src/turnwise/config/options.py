"""Tables of options, as a recipe gives them for tools, servers and rewards."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from turnwise.core.errors import UserError
from turnwise.core.names import nearest

SECRETS = ("key", "api_key", "token", "secret", "password")
"""Options that nobody has, since a recipe is saved and shown."""
Options = TypeVar("Options")


def read_options(kind: type[Options], given: Mapping[str, Any], what: str, besides: Iterable[str] = ()) -> Options:
    """`given` as `kind`, a pydantic model or a dataclass; else a UserError in one line.

    It never says what a value was: somebody may have written a key where the name of its variable belongs. `besides`:
    what the same table may say, and others have read.
    """
    known = names_of(kind)
    for name in given:
        if name not in known:
            raise UserError(_unknown(name, what, [*known, *besides]))
    try:
        return TypeAdapter(kind).validate_python(dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        raise UserError(f'{what} lacks its option "{name}": give {name} = ...') from None
    said = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    raise UserError(f"{what}{f', {name}' if name else ''}: {said[:1].lower()}{said[1:]}") from None


def names_of(kind: Any) -> list[str]:
    """The options that it has."""
    return [field.name for field in fields(kind)] if is_dataclass(kind) else list(kind.model_fields)


def _unknown(name: str, what: str, known: Iterable[str]) -> str:
    if name.lower() in SECRETS:
        return f'{what} takes no "{name}": recipes are saved; name its variable with key_env'
    return f'{what} has no option "{name}":{nearest(name, known)}'
