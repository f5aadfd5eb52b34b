"""Tables of options, as a recipe gives them for tools, servers and rewards."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from turnwise.core.errors import UserError
from turnwise.core.names import nearest

SECRETS = ("key", "api_key", "token", "secret", "password")
"""Options that nobody has, since a recipe is saved and shown."""
Options = TypeVar("Options", bound=BaseModel)


def read_options(kind: type[Options], given: Mapping[str, Any], what: str) -> Options:
    """`given` as `kind`; else a UserError in one line.

    It never says what a value was: somebody may have written a key where the name of its variable belongs.
    """
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        if name.lower() in SECRETS:
            raise UserError(f'{what} takes no "{name}": recipes are saved; name its variable with key_env') from None
        raise UserError(f'{what} has no option "{name}":{nearest(name, kind.model_fields)}') from None
    if first["type"] == "missing":
        raise UserError(f'{what} lacks its option "{name}": give {name} = ...') from None
    said = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    raise UserError(f"{what}{f', {name}' if name else ''}: {said[:1].lower()}{said[1:]}") from None
