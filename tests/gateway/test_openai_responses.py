import json
from dataclasses import replace
from typing import Any

import pytest
from dialect_cases import PARAMETERS, RESPONSES, read_events, reply

from turnwise.core.messages import ImagePart, Message, ToolCall, system, text_parts, user
from turnwise.gateway import openai_responses
from turnwise.gateway.chat import RequestError
from turnwise.gateway.openai_responses import ResponseHistory


def test_parse_reads_items_tools_and_settings() -> None:
    request = openai_responses.parse(RESPONSES)
    calls = (
        ToolCall(name="weather", arguments='{"city": "Ulm"}', call_id="c1"),
        ToolCall(name="apply_patch", arguments='{"input": "*** Begin"}', call_id="c2"),
        ToolCall(name="mcp__disk__read", arguments="{}", call_id="c3"),
    )
    assert request.messages == (
        system("Be brief."),
        system("Use tools."),
        user("one"),
        Message(role="assistant", parts=text_parts("Let me look."), tool_calls=calls),
        Message(role="tool", parts=text_parts("sun"), call_id="c1"),
        Message(role="tool", parts=text_parts("done"), call_id="c2"),
        Message(role="tool", call_id="c3"),
        Message(role="user", parts=(ImagePart(data=b"\x89PNG\r\n\x1a\n"),)),
    )
    assert [tool.name for tool in request.tools] == ["weather", "apply_patch", "mcp__disk__read"]
    assert request.tools[0].parameters == PARAMETERS
    assert (request.max_tokens, request.temperature, request.stream) == (100, 0.5, False)


def test_parse_reads_a_text_as_the_users_message() -> None:
    assert openai_responses.parse({"input": "Hello"}).messages == (user("Hello"),)


def test_parse_starts_a_message_at_each_reasoning_item() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    request = openai_responses.parse({"input": [call, call, {"type": "reasoning"}, call]})
    assert [len(message.tool_calls) for message in request.messages] == [2, 1]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input.0.content.0.type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]}]},
            "input.0.content.0.image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:;base64,bm9!0"}]}]},
            "input.0.content.0.image_url",
        ),
        ({"tools": [{"type": "file_search"}]}, "tools.0.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
    ],
)
def test_parse_rejects_unsupported_requests(change: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        openai_responses.parse({**RESPONSES, **change})
    assert raised.value.param == param


CALLS = [("weather", '{"city":"Ulm"}'), ("apply_patch", '{"input": "*** Begin"}'), ("mcp__disk__read", "{}")]


def test_response_names_calls_as_the_client_does() -> None:
    request = openai_responses.parse(RESPONSES)
    body = openai_responses.response(request, [reply("Hi", [*CALLS, ("made_up", "x")], thinking="hm")], "tiny")
    _, message, weather, patch, read, made_up = body["output"]
    assert message["content"][0]["text"] == "Hi"
    assert (weather["type"], weather["name"], weather["arguments"]) == ("function_call", "weather", '{"city":"Ulm"}')
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply_patch", "*** Begin")
    assert (read["namespace"], read["name"]) == ("mcp__disk", "read")
    assert (made_up["name"], made_up["arguments"]) == ("made_up", "x")
    assert (body["status"], body["usage"]["total_tokens"], body["metadata"]) == ("completed", 10, {"run": "1"})


def test_output_sent_back_is_the_reply() -> None:
    request, given = openai_responses.parse(RESPONSES), reply("Hi", CALLS, thinking="hm")
    output = openai_responses.response(request, [given], "tiny")["output"]
    again = openai_responses.parse({**RESPONSES, "input": json.loads(json.dumps(output))})
    assert again.messages[0] == system("Be brief.")
    assert again.messages[1].content == "<think>\nhm\n</think>\n\nHi"
    assert again.messages[1].tool_calls == given.message.tool_calls


@pytest.mark.parametrize("stop", [("stop", "completed"), ("length", "incomplete")])
def test_events_complete_each_item(stop: tuple[str, str]) -> None:
    request = openai_responses.parse(RESPONSES)
    replies = [reply("Hi", CALLS, thinking="hm", stop=stop[0])]
    events = read_events(openai_responses.events(request, replies, "tiny"))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == openai_responses.response(request, replies, "tiny")["output"]
    assert events[-1]["type"] == f"response.{stop[1]}"
    assert events[-1]["response"]["output"] == done
    texts = [event["delta"] for event in events if event["type"].endswith(".delta")]
    assert texts == ["hm", "Hi", '{"city":"Ulm"}', "*** Begin", "{}"]


def test_history_puts_earlier_items_before_the_input() -> None:
    history = ResponseHistory()
    body: dict[str, Any] = {**RESPONSES, "input": "Weather?"}
    first = openai_responses.parse(body)
    history.add(first, [reply("Hm.", CALLS)])
    output = {"type": "function_call_output", "call_id": "call_0", "output": "sun"}
    later = {"input": [output], "previous_response_id": "resp_a1", "instructions": "Be polite."}
    messages = openai_responses.parse(history.resolve(later)).messages
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool"]
    assert messages[0] == system("Be polite.")
    assert messages[2] == reply("Hm.", CALLS).message
    assert history.resolve(body) is body


def test_history_forgets_the_oldest_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_responses, "MAX_RESPONSES", 4)
    history = ResponseHistory()
    for number in range(20):
        request = openai_responses.parse({**RESPONSES, "input": f"Question {number}"})
        history.add(request, [replace(reply("Hm.", ()), call=str(number))])
    assert len(history._responses) <= 4 and len(history._items) <= 2 * 4
    assert history.resolve({"input": "x", "previous_response_id": "resp_19"})["input"][0]["content"] == "Question 19"
    with pytest.raises(RequestError, match="previous_response_id"):
        history.resolve({"input": "x", "previous_response_id": "resp_0"})


@pytest.mark.parametrize("previous", ["resp_x", 5, [], {}])
def test_history_rejects_unknown_responses(previous: Any) -> None:
    with pytest.raises(RequestError, match="previous_response_id"):
        ResponseHistory().resolve({"input": "x", "previous_response_id": previous})
