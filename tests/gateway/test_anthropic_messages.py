import json
from dataclasses import replace
from typing import Any

import pytest
from dialect_cases import ANTHROPIC, PARAMETERS, read_events, reply

from turnwise.core.messages import ImagePart, Message, TextPart, ToolCall, ToolSpec, system, text_parts, user
from turnwise.gateway import anthropic_messages
from turnwise.gateway.chat import RequestError


def test_parse_reads_messages_tools_and_settings() -> None:
    request = anthropic_messages.parse(ANTHROPIC)
    call = ToolCall(name="weather", arguments='{"city": "Ulm"}', call_id="c1")
    image = ImagePart(data=b"\x89PNG\r\n\x1a\n")
    assert request.messages == (
        system("Be brief."),
        user("one\ntwo"),
        Message(role="assistant", parts=text_parts("<think>\nhm\n</think>\n\nLet me look."), tool_calls=(call,)),
        Message(role="tool", parts=text_parts("sun"), call_id="c1"),
        Message(role="user", parts=(TextPart(text="and?"), image)),
    )
    assert request.tools == (ToolSpec(name="weather", description="Weather of a city.", parameters=PARAMETERS),)
    assert (request.max_tokens, request.temperature, request.stop, request.stream) == (100, 0.5, ("END",), False)
    assert request.wishes["model"] == "claude"


def test_parse_keeps_order_of_texts_and_results() -> None:
    result = {"type": "tool_result", "tool_use_id": "c1"}
    content = [{"type": "text", "text": "before"}, result, result, {"type": "text", "text": "after"}]
    request = anthropic_messages.parse({"messages": [{"role": "user", "content": content}]})
    assert [message.role for message in request.messages] == ["user", "tool", "tool", "user"]
    assert [message.content for message in request.messages] == ["before", "", "", "after"]


def test_parse_merges_consecutive_assistant_messages() -> None:
    parted = [{"role": "assistant", "content": [block]} for block in ANTHROPIC["messages"][1]["content"]]
    messages = [ANTHROPIC["messages"][0], *parted, ANTHROPIC["messages"][2]]
    assert anthropic_messages.parse({**ANTHROPIC, "messages": messages}) == anthropic_messages.parse(ANTHROPIC)


def test_parse_leaves_tools_out_if_none_may_be_called() -> None:
    assert anthropic_messages.parse({**ANTHROPIC, "tool_choice": {"type": "none"}}).tools == ()


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Sure,"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages.0.content.type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]},
            "messages.0.content.source.type",
        ),
        ({"tools": [{"type": "web_search_20260318", "name": "web_search"}]}, "tools.0.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    ],
)
def test_parse_rejects_unsupported_requests(change: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        anthropic_messages.parse({**ANTHROPIC, **change})
    assert raised.value.param == param


def test_response_has_thinking_text_and_calls() -> None:
    request = anthropic_messages.parse(ANTHROPIC)
    body = anthropic_messages.response(request, [reply("Hi", [("weather", '{"city":"Ulm"}')], thinking="hm")], "tiny")
    assert [block["type"] for block in body["content"]] == ["thinking", "text", "tool_use"]
    assert body["content"][2] == {"type": "tool_use", "id": "call_0", "name": "weather", "input": {"city": "Ulm"}}
    assert (body["stop_reason"], body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == ("tool_use", 7, 3)


@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}])
def test_response_hides_thinking_unless_asked_for(thinking: Any) -> None:
    request = anthropic_messages.parse({**ANTHROPIC, "thinking": thinking})
    body = anthropic_messages.response(request, [reply(thinking="hm")], "tiny")
    assert body["content"] == [{"type": "text", "text": ""}]


@pytest.mark.parametrize("stop", [("stop", "end_turn"), ("length", "max_tokens")])
def test_response_names_the_reason_to_stop(stop: tuple[str, str]) -> None:
    request = anthropic_messages.parse(ANTHROPIC)
    assert anthropic_messages.response(request, [reply("x", stop=stop[0])], "tiny")["stop_reason"] == stop[1]


def test_response_names_the_stop_sequence() -> None:
    request = anthropic_messages.parse(ANTHROPIC)
    body = anthropic_messages.response(request, [replace(reply("x"), stop_string="END")], "tiny")
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "END")
    body = anthropic_messages.response(request, [replace(reply("x"), stop_string="of the gateway")], "tiny")
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)


@pytest.mark.parametrize(
    "arguments",
    ['{"city": "Ulm", "n": 1.0}', "", "Ulm", "[1]", '{"n": NaN}', '{"n": 1e999}', '{"a": "\\ud800"}', "[" * 5000],
)
def test_arguments_survive_the_round_trip_through_a_client(arguments: str) -> None:
    request = anthropic_messages.parse(ANTHROPIC)
    body = anthropic_messages.response(request, [reply(calls=[("weather", arguments)])], "tiny")
    sent = json.loads(json.dumps(body["content"], ensure_ascii=False, allow_nan=False).encode())
    rest = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_0"}]}
    again = anthropic_messages.parse({"messages": [{"role": "assistant", "content": sent}, rest]})
    [call] = again.messages[0].tool_calls
    assert call.arguments == arguments or json.loads(call.arguments) == json.loads(arguments)


def test_events_complete_each_block() -> None:
    request = anthropic_messages.parse(ANTHROPIC)
    replies = [reply("Hi", [("weather", '{"city":"Ulm"}'), ("weather", "no json")], thinking="hm")]
    events = read_events(anthropic_messages.events(request, replies, "tiny"))
    blocks: list[dict[str, Any]] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks.append(event["content_block"])
            case "content_block_delta":
                delta = {key: value for key, value in event["delta"].items() if key != "type"}
                given = {"input": json.loads(delta["partial_json"])} if "partial_json" in delta else delta
                blocks[event["index"]].update(given)
    assert blocks == anthropic_messages.response(request, replies, "tiny")["content"]
    assert [event["type"] for event in (events[0], events[-2], events[-1])] == [
        *("message_start", "message_delta", "message_stop"),
    ]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["output_tokens"] == 3


def test_error_reports_a_prompt_that_is_too_long() -> None:
    body = anthropic_messages.error(400, "context_length", "at most 10 tokens")
    assert body["type"] == "error"
    assert body["error"] == {"type": "invalid_request_error", "message": "prompt is too long: at most 10 tokens"}
    assert anthropic_messages.error_event(529, "overloaded", "later").startswith(b"event: error\ndata: ")
