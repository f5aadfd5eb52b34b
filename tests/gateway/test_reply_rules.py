"""Settings that demand JSON or a call: how each dialect's request is read."""

from collections.abc import Callable
from typing import Any

import pytest

from turnwise.gateway import anthropic_messages, openai_chat, openai_responses
from turnwise.gateway.chat import ChatRequest, RequestError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def chat(**settings: Any) -> ChatRequest:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("add", "sub")]
    return openai_chat.parse({"messages": [{"role": "user", "content": "x"}], "tools": tools, **settings})


def responses(**settings: Any) -> ChatRequest:
    tools = [{"type": "function", "name": name, "parameters": SCHEMA} for name in ("add", "sub")]
    return openai_responses.parse({"input": "x", "tools": tools, **settings})


def messages(**settings: Any) -> ChatRequest:
    tools = [{"name": name, "input_schema": SCHEMA} for name in ("add", "sub")]
    return anthropic_messages.parse({"messages": [{"role": "user", "content": "x"}], "tools": tools, **settings})


Parse = Callable[..., ChatRequest]


@pytest.mark.parametrize(
    ("parse", "settings", "setting", "names"),
    [
        (chat, {"tool_choice": "required"}, "tool_choice", ["add", "sub"]),
        (chat, {"tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice", ["sub"]),
        (chat, {"function_call": {"name": "add"}}, "function_call", ["add"]),
        (
            chat,
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "add"}}]},
                }
            },
            "tool_choice",
            ["add"],
        ),
        (responses, {"tool_choice": "required"}, "tool_choice", ["add", "sub"]),
        (responses, {"tool_choice": {"type": "function", "name": "sub"}}, "tool_choice", ["sub"]),
        (messages, {"tool_choice": {"type": "any"}}, "tool_choice", ["add", "sub"]),
        (messages, {"tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice", ["sub"]),
    ],
)
def test_parse_reads_required_calls(parse: Parse, settings: dict[str, Any], setting: str, names: list[str]) -> None:
    request = parse(**settings)
    assert request.rule is not None
    assert (request.rule.setting, request.rule.schema) == (setting, None)
    assert [tool.name for tool in request.rule.tools] == names
    assert [tool.name for tool in request.tools] == ["add", "sub"]  # the model sees all


@pytest.mark.parametrize(
    ("parse", "settings", "setting", "schema"),
    [
        (chat, {"response_format": {"type": "json_object"}}, "response_format", {"type": "object"}),
        (
            chat,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            "response_format",
            SCHEMA,
        ),
        (responses, {"text": {"format": {"type": "json_object"}}}, "text.format", {"type": "object"}),
        (
            responses,
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
            "text.format",
            SCHEMA,
        ),
        (
            messages,
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            "output_config.format",
            SCHEMA,
        ),
    ],
)
def test_parse_reads_reply_schemas(parse: Parse, settings: dict[str, Any], setting: str, schema: Any) -> None:
    request = parse(**settings)
    assert request.rule is not None
    assert (request.rule.setting, request.rule.schema) == (setting, schema)
    assert [tool.name for tool in request.rule.tools] == ["add", "sub"]  # a call is a reply too


@pytest.mark.parametrize(
    ("parse", "settings"),
    [
        (chat, {}),
        (chat, {"tool_choice": "auto", "response_format": {"type": "text"}}),
        (responses, {"tool_choice": "auto", "text": {"format": {"type": "text"}}}),
        (messages, {"tool_choice": {"type": "auto"}}),
    ],
)
def test_parse_reads_no_rule_from_defaults(parse: Parse, settings: dict[str, Any]) -> None:
    request = parse(**settings)
    assert request.rule is None
    assert len(request.tools) == 2


@pytest.mark.parametrize(("parse", "choice"), [(chat, "none"), (responses, "none"), (messages, {"type": "none"})])
def test_parse_leaves_tools_out_if_none_may_be_called(parse: Parse, choice: Any) -> None:
    assert (parse(tool_choice=choice).tools, parse(tool_choice=choice).rule) == ((), None)


@pytest.mark.parametrize(
    ("parse", "settings", "param"),
    [
        (chat, {"tool_choice": {"type": "function", "function": {"name": "mul"}}}, "tool_choice"),
        (chat, {"tool_choice": "required", "tools": []}, "tool_choice"),
        (chat, {"tool_choice": 3}, "tool_choice"),
        (chat, {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [1]}}}, "tool_choice.tools"),
        (responses, {"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        (messages, {"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        (chat, {"response_format": {"type": "json_schema"}}, "response_format.schema"),
        (chat, {"response_format": "json"}, "response_format"),
    ],
)
def test_parse_rejects_rules_that_cannot_be_met(parse: Parse, settings: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse(**settings)
    assert raised.value.param == param
