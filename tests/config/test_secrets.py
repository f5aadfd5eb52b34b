"""No address holds a key, and no message repeats what was given in a key's place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.config.keys import SECRETS
from turnwise.config.secrets import name_of_variable, read_key, split_url
from turnwise.core.errors import UserError

GIVEN = {"option": "url", "example": "http://h/v1", "mend": "name its variable"}
CANARY = "sk_canary_51c0"


@pytest.mark.parametrize(
    "url",
    [
        *(f"https://h/v1?{name}={CANARY}" for name in SECRETS),
        f"https://h/v1?a=1&API-Key={CANARY}",
        f"https://h/v1?api%5Fkey={CANARY}",
        f"https://h/v1?accessToken={CANARY}",
        f"https://h/v1?apikey={CANARY}",
        f"https://me:{CANARY}@h/v1",
        f"https://{CANARY}@h/v1",
        f"h/v1?key={CANARY}",
        f"ftp://h/{CANARY}",
        CANARY,
        f"http://[{CANARY}",
    ],
)
def test_an_address_that_holds_a_key_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UserError) as told:
        split_url(url, **GIVEN)
    assert CANARY not in f"{told.value!r}{told.value.__cause__!r}{told.value.__context__!r}"
    assert str(told.value).startswith("url ") and "\n" not in str(told.value)


@pytest.mark.parametrize(
    "url", ["https://h/v1", "http://h:1/x?api-version=2&max_tokens=3&keys=4&sort_key=a&monkey=1", "http://[::1]/"]
)
def test_any_other_address_is_taken_as_it_is(url: str) -> None:
    assert split_url(url, **GIVEN).geturl() == url


@pytest.mark.parametrize("environment", [{}, {CANARY: " "}, {CANARY: "a\nb"}])
def test_what_stands_in_the_place_of_a_variables_name_is_never_repeated(environment: dict[str, str]) -> None:
    """A key may well look like a name."""
    parts = split_url("https://h/v1", **GIVEN)
    with pytest.raises(UserError, match="the variable that key_env names") as told:
        read_key(parts, CANARY, default="D", option="key_env", environment=environment)
    assert CANARY not in str(told.value) and "\n" not in str(told.value)


@given(st.text())
def test_only_names_are_names_of_variables(value: str) -> None:
    if value.isidentifier() and value.isascii():
        assert name_of_variable(value) == value
    else:
        with pytest.raises(ValueError, match="no name of a variable") as told:
            name_of_variable(value)
        assert str(told.value) == "that is no name of a variable: put the key into one, and its name here"
