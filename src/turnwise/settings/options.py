"""Options of a tool, judge or environment: a table that is read as a pydantic model or a dataclass."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from turnwise.core.errors import UserError
from turnwise.settings.section import quoted_numbers
from turnwise.text.suggestions import suggest

SECRETS = ("key", "api_key", "token", "secret", "password")
"""Names that are never options: recipes are saved and shown, so secrets are given by environment variables."""
Options = TypeVar("Options")


def read_options(
    options_type: type[Options], table: Mapping[str, Any], owner: str, other_keys: Iterable[str] = ()
) -> Options:
    """Validate a table as a pydantic model or a dataclass; raise a UserError of one line that starts with `owner`.

    The error never repeats a value: it may be an API key written where the name of its variable belongs. `other_keys`:
    keys of the same table that are read elsewhere, for the suggestions.
    """
    known = option_names(options_type)
    for name in table:
        if name not in known:
            raise UserError(_unknown_option(name, owner, [*known, *other_keys]))
    problem, options = "", None
    try:
        options = TypeAdapter(options_type).validate_python(dict(table))
    except ValidationError as error:
        problem = _describe_invalid(error, owner)
    if options is None:  # raised here, so that no traceback contains pydantic's error, which repeats the value
        raise UserError(problem)
    for name, _ in quoted_numbers(table, {name: getattr(options, name) for name in table}):
        raise UserError(f"{owner}, {name}: give the value without quotes.")
    return options


def _describe_invalid(error: ValidationError, owner: str) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f'{owner} lacks its option "{name}": give {name} = ...'
    reason = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    return f"{owner}{f', {name}' if name else ''}: {reason[:1].lower()}{reason[1:]}"


def option_names(options_type: Any) -> list[str]:
    return (
        [field.name for field in fields(options_type)]
        if is_dataclass(options_type)
        else list(options_type.model_fields)
    )


def _unknown_option(name: str, owner: str, known: Iterable[str]) -> str:
    if name.lower() in SECRETS:
        return f'{owner} takes no "{name}": recipes are saved; name its variable with key_env'
    return f'{owner} has no option "{name}":{suggest(name, known)}'
