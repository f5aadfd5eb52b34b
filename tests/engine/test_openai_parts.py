import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.core.trajectory import Stop
from turnwise.engine.openai.endpoint import Endpoint, error_detail, read_key, retry_after, split_url
from turnwise.engine.openai.messages import MAX_CHARS, MalformedReply, Reply, parse_reply

HTTPS = "https://api.example.com/v1"


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("http://localhost:8000/v1", "http://localhost:8000/v1/chat/completions"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1/chat/completions"),
        ("https://h/v1/chat/completions", "https://h/v1/chat/completions"),
        ("https://h/openai/x?api-version=2", "https://h/openai/x/chat/completions?api-version=2"),
    ],
)
def test_where_requests_go(typed: str, asked: str) -> None:
    assert Endpoint(url=typed, model="m").chat_url == asked


@pytest.mark.parametrize("typed", ["localhost:8000", "ftp://h/v1", "http://", "", "http://h:port/v1", "http://[h/v1"])
def test_what_is_no_address_is_refused(typed: str) -> None:
    with pytest.raises(UserError, match="must be a URL such as"):
        split_url(typed)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UserError, match="holds a password") as told:
        split_url("https://me:secret@h/v1")
    assert "secret" not in str(told.value)


def test_the_key_comes_from_its_variable() -> None:
    variables = {"OPENAI_API_KEY": " one\n", "MINE": "two", "BAD": "a\nb", "EMPTY": ""}
    assert read_key(HTTPS, None, variables) == "one"
    assert read_key(HTTPS, "MINE", variables) == "two"
    assert read_key(HTTPS, None, {}) is None
    for name in ("EMPTY", "NOWHERE"):
        with pytest.raises(UserError, match="the variable that --api-key-env names is not set") as told:
            read_key(HTTPS, name, variables)
        assert name not in str(told.value), "it may be the key itself"
    with pytest.raises(UserError, match="the key in the variable that --api-key-env names holds characters"):
        read_key(HTTPS, "BAD", variables)


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
def test_a_key_that_was_not_named_never_goes_over_an_open_line(url: str, sent: bool) -> None:
    assert (read_key(url, None, {"OPENAI_API_KEY": "k"}) == "k") is sent
    assert read_key(url, "MINE", {"MINE": "k"}) == "k"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("0.5", 0.5),
        ("-4", 0.0),
        ("soon", None),
        ("nan", None),
        ("Wed, 21 Oct 2015 07:28:10 GMT", 10.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
    ],
)
def test_retry_after_in_seconds_and_as_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, now=lambda: 1445412480.0) == seconds


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "usage", "text", "tool_calls", "function", "error"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(value=JSON | st.fixed_dictionaries({"choices": st.lists(st.fixed_dictionaries({"message": JSON}), max_size=2)}))
def test_any_answer_is_a_reply_or_garbled(value: Any) -> None:
    try:
        reply = parse_reply(json.dumps(value).encode())
    except MalformedReply:
        return
    assert isinstance(reply, Reply)
    reply.message.content.encode()


@given(data=st.binary(max_size=60))
def test_any_bytes_are_garbled_and_tell_a_short_line(data: bytes) -> None:
    with pytest.raises(MalformedReply):
        parse_reply(data)
    detail = error_detail(Endpoint(url=HTTPS, model="m", key="\u0001"), data)
    assert detail == "" or (detail.isprintable() and len(detail) < 210)


def answer(content: Any, **usage: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}}], "usage": usage}).encode()


def test_parts_of_text_are_joined_and_length_is_bounded() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    assert parse_reply(answer(parts)).message.content == "ab"
    assert len(parse_reply(answer("x" * (MAX_CHARS + 5))).message.content) == MAX_CHARS
    assert parse_reply(answer("a")).stop is Stop.EOS


@pytest.mark.parametrize("count", [-1, True, 1.5, "3", 10**12])
def test_counts_that_cannot_be_are_no_counts(count: Any) -> None:
    reply = parse_reply(answer("a", prompt_tokens=count, completion_tokens=4))
    assert (reply.prompt_tokens, reply.sampled_tokens) == (None, 4)
