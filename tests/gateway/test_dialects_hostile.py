"""Malformed bodies: each dialect answers with its own 400."""

import json
from types import ModuleType
from typing import Any

import pytest
from dialect_cases import ANTHROPIC, CHAT, RESPONSES, bodies, changed, reply
from hypothesis import given
from hypothesis import strategies as st

from turnwise.gateway import anthropic_messages, openai_chat, openai_responses
from turnwise.gateway.chat import RequestError
from turnwise.gateway.request_body import parse_json

BODIES = {openai_chat: CHAT, openai_responses: RESPONSES, anthropic_messages: ANTHROPIC}
REPLIES = [reply("Hi", [("weather", "{}"), ("made_up", "[1")], thinking="hm")]


@pytest.mark.parametrize("dialect", BODIES, ids=lambda dialect: dialect.__name__.split(".")[-1])
@given(data=st.data())
def test_dialects_reject_malformed_bodies_without_failing(dialect: ModuleType, data: st.DataObject) -> None:
    body = data.draw(bodies(BODIES[dialect]))
    try:
        request = dialect.parse(parse_json(json.dumps(body).encode()))
    except RequestError as error:
        assert error.status == 400
        assert len(error.message.splitlines()) == 1
        return
    for message in request.messages:
        message.content.encode()
    b"".join(dialect.events(request, REPLIES, "tiny")).decode()
    json.dumps(dialect.response(request, REPLIES, "tiny"), ensure_ascii=False, allow_nan=False).encode()


CHECKED = [
    *((openai_chat, path) for path in ("messages", "messages.0.role", "messages.1.content.0.text", "tools.0.function")),
    *((openai_chat, path) for path in ("messages.2.tool_calls.0.function.arguments", "max_tokens", "n", "stop")),
    *((openai_responses, path) for path in ("input", "input.0", "input.0.role", "input.1.content.0.text", "tools.0")),
    *((openai_responses, path) for path in ("input.4.arguments", "input.5.input", "input.7.output", "tools.2.tools")),
    *((openai_responses, path) for path in ("instructions", "max_output_tokens", "input.10.content.0.image_url")),
    *((anthropic_messages, path) for path in ("messages", "messages.0.role", "messages.0.content.0.text", "system")),
    *((anthropic_messages, path) for path in ("messages.1.content.3.input", "messages.2.content.0.tool_use_id")),
    *((anthropic_messages, path) for path in ("tools.0.input_schema", "thinking", "max_tokens", "stop_sequences")),
]


@pytest.mark.parametrize(("dialect", "path"), CHECKED)
@pytest.mark.parametrize("value", [-0.5, True, [[0]], {"a": 1}], ids=["number", "boolean", "list", "object"])
def test_dialects_check_the_types_of_fields(dialect: ModuleType, path: str, value: Any) -> None:
    """No field takes numbers, booleans, lists of lists and objects with an unknown key."""
    keys = tuple(int(key) if key.isdigit() else key for key in path.split("."))
    if path.endswith(("input_schema", ".input")) and isinstance(value, dict):
        return
    with pytest.raises(RequestError):
        dialect.parse(changed(BODIES[dialect], keys, value))
