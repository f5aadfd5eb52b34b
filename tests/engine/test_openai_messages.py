import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.trajectory import Stop
from turnwise.engine.openai.endpoint import Endpoint, error_detail, retry_after
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
def test_endpoint_chat_url(typed: str, asked: str) -> None:
    assert Endpoint(url=typed, model="m").chat_url == asked


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
def test_retry_after_reads_seconds_and_dates(header: str | None, seconds: float | None) -> None:
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
def test_parse_reply_accepts_or_rejects_any_json(value: Any) -> None:
    try:
        reply = parse_reply(json.dumps(value).encode())
    except MalformedReply:
        return
    assert isinstance(reply, Reply)
    reply.message.content.encode()


@given(data=st.binary(max_size=60))
def test_parse_reply_rejects_any_bytes(data: bytes) -> None:
    with pytest.raises(MalformedReply):
        parse_reply(data)
    detail = error_detail(Endpoint(url=HTTPS, model="m", key="\u0001"), data)
    assert detail == "" or (detail.isprintable() and len(detail) < 210)


def answer(content: Any, **usage: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}}], "usage": usage}).encode()


def test_parse_reply_joins_text_parts_and_limits_length() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    assert parse_reply(answer(parts)).message.content == "ab"
    assert len(parse_reply(answer("x" * (MAX_CHARS + 5))).message.content) == MAX_CHARS
    assert parse_reply(answer("a")).stop is Stop.EOS


@pytest.mark.parametrize("count", [-1, True, 1.5, "3", 10**12])
def test_parse_reply_ignores_impossible_token_counts(count: Any) -> None:
    reply = parse_reply(answer("a", prompt_tokens=count, completion_tokens=4))
    assert (reply.prompt_tokens, reply.sampled_tokens) == (None, 4)
