"""Keys in URLs are rejected, and no message repeats a key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.network.secrets import check_variable_name, read_key, split_url
from turnwise.settings.options import SECRETS

ARGUMENTS = {"option": "url", "example": "http://h/v1", "fix": "name its variable"}
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
def test_split_url_rejects_a_key_without_repeating_it(url: str) -> None:
    with pytest.raises(UserError) as error:
        split_url(url, **ARGUMENTS)
    assert CANARY not in f"{error.value!r}{error.value.__cause__!r}{error.value.__context__!r}"
    assert str(error.value).startswith("url ") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["https://h/v1", "http://h:1/x?api-version=2&max_tokens=3&keys=4&sort_key=a&monkey=1", "http://[::1]/"]
)
def test_split_url_accepts_urls_without_keys(url: str) -> None:
    assert split_url(url, **ARGUMENTS).geturl() == url


@pytest.mark.parametrize("environment", [{}, {CANARY: " "}, {CANARY: "a\nb"}])
def test_read_key_never_repeats_the_name_of_the_variable(environment: dict[str, str]) -> None:
    """It may be the key itself."""
    parts = split_url("https://h/v1", **ARGUMENTS)
    with pytest.raises(UserError, match="variable that key_env names") as error:
        read_key(parts, CANARY, default="D", option="key_env", environment=environment)
    assert CANARY not in str(error.value) and "\n" not in str(error.value)


@given(st.text())
def test_check_variable_name_accepts_identifiers_only(value: str) -> None:
    if value.isidentifier() and value.isascii():
        assert check_variable_name(value) == value
    else:
        with pytest.raises(ValueError, match="not the name of a variable") as error:
            check_variable_name(value)
        assert str(error.value) == "not the name of a variable: set a variable to the key, and give its name here"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://h/v1", "http://", "", "http://h:port/v1", "http://[h/v1"])
def test_split_url_rejects_invalid_urls(url: str) -> None:
    with pytest.raises(UserError, match="must be a URL such as"):
        split_url(url, **ARGUMENTS)


def read_openai_key(url: str, variable: str | None, environment: dict[str, str]) -> str | None:
    parts = split_url(url, **ARGUMENTS)
    return read_key(parts, variable, default="OPENAI_API_KEY", option="--api-key-env", environment=environment)


def test_read_key_prefers_the_named_variable() -> None:
    url, variables = "https://api.example.com/v1", {"OPENAI_API_KEY": " one\n", "MINE": "two", "BAD": "a\nb"}
    assert read_openai_key(url, None, variables) == "one"
    assert read_openai_key(url, "MINE", variables) == "two"
    assert read_openai_key(url, None, {}) is None
    with pytest.raises(UserError, match="The key in the variable that --api-key-env names has characters"):
        read_openai_key(url, "BAD", variables)


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("http://localhost:8000/v1", True),
        ("http://127.0.0.1/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://10.0.0.5:8000/v1", False),
        ("http://localhost.evil.com/v1", False),
        ("https://10.0.0.5/v1", True),
    ],
)
def test_read_key_never_sends_the_default_key_over_plain_http(url: str, sent: bool) -> None:
    assert (read_openai_key(url, None, {"OPENAI_API_KEY": "k"}) == "k") is sent
    assert read_openai_key(url, "MINE", {"MINE": "k"}) == "k"
