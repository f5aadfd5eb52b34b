"""Errors of `read_options`."""

from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from turnwise.core.errors import UserError
from turnwise.settings.options import read_options


class Model(BaseModel):
    against: str
    at_least: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    timeout_s: float = 5.0
    files: int = 3


@pytest.mark.parametrize(
    ("options_type", "table", "message"),
    [
        (Model, {"agianst": "x"}, 'it has no option "agianst": did you mean "against"?'),
        (Model, {"against": "x", "weigth": 1}, 'it has no option "weigth": did you mean "weight"?'),
        (Model, {"against": "x", "zzz": 1}, 'it has no option "zzz": there are against, at_least, weight'),
        (Model, {"against": "x", "token": "sk-secret"}, 'it takes no "token": recipes are saved; '),
        (Model, {}, 'it lacks its option "against": give against = ...'),
        (Model, {"against": "x", "at_least": "sk-secret"}, "it, at_least: input should be a valid number"),
        (Limits, {"timeout": 3}, 'it has no option "timeout": did you mean "timeout_s"?'),
        (Limits, {"files": "sk-secret"}, "it, files: input should be a valid integer"),
    ],
)
def test_read_options_error_is_one_line_without_the_value(
    options_type: type, table: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        read_options(options_type, table, "it", other_keys=["weight"])
    assert str(caught.value).startswith(message) and "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_read_options_reads_models_and_dataclasses() -> None:
    assert read_options(Limits, {"timeout_s": 2}, "it") == Limits(timeout_s=2.0)
    assert read_options(Model, {"against": "x"}, "it") == Model(against="x")
