"""A reply that a client sends back is recognised, so that the sampled ids are kept."""

import json
from typing import Any

import pytest
from dialect_cases import ANTHROPIC, RESPONSES, reply
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.messages import Message
from turnwise.gateway import anthropic_messages, openai_chat, openai_responses
from turnwise.gateway.chat import ChatReply
from turnwise.gateway.conversation import digest_message, digest_reply, number_calls

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)
ARGUMENTS = st.one_of(
    st.builds(json.dumps, OBJECTS | VALUES),
    st.builds(lambda value: json.dumps(value, indent=1, ensure_ascii=False), OBJECTS),
    TEXTS | st.sampled_from(['{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', "{", "[" * 5000]),
)
REPLIES = st.builds(
    lambda content, calls, thinking: reply(content, calls, thinking=thinking),
    TEXTS,
    st.lists(st.tuples(st.sampled_from(["weather", "mcp__disk__read", "made_up"]), ARGUMENTS), max_size=3),
    TEXTS,
)


def over_the_wire(value: Any) -> Any:
    """Return what a client reads and then serialises in its own way."""
    return json.loads(json.dumps(json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())))


def back_from_chat(given: ChatReply) -> Message:
    body = openai_chat.response(openai_chat.parse({"messages": [{"role": "user"}]}), [given], "tiny")
    return openai_chat.parse({"messages": [over_the_wire(body["choices"][0]["message"])]}).messages[0]


def back_from_responses(given: ChatReply) -> Message:
    body = openai_responses.response(openai_responses.parse(RESPONSES), [given], "tiny")
    [message] = openai_responses.parse({"tools": RESPONSES["tools"], "input": over_the_wire(body["output"])}).messages
    return message


def back_from_messages(given: ChatReply) -> Message:
    body = anthropic_messages.response(anthropic_messages.parse(ANTHROPIC), [given], "tiny")
    sent = [{"role": "assistant", "content": over_the_wire(body["content"])}, {"role": "user", "content": "x"}]
    return anthropic_messages.parse({"messages": sent}).messages[0]


@pytest.mark.parametrize("back", [back_from_chat, back_from_responses, back_from_messages])
@given(given_reply=REPLIES)
def test_replies_are_recognised_when_sent_back(back: Any, given_reply: ChatReply) -> None:
    (again,) = number_calls([back(given_reply)])
    assert digest_message(again) == digest_reply(given_reply.message, given_reply.thinking)
    thought = bool(given_reply.thinking.strip())
    assert (digest_message(again) != digest_reply(given_reply.message, thinking="")) == thought
