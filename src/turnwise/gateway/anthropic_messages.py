"""Anthropic Messages: requests, replies and server-sent events.

Thinking is shown only if the request asks for it, as by the provider.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnwise.core.messages import ContentPart, Message, Role, TextPart, ToolCall, ToolSpec
from turnwise.gateway.chat import ChatReply, ChatRequest, ErrorKind, RequestError, read_wishes
from turnwise.gateway.fields import (
    add_thinking,
    image_from_base64,
    join_texts,
    read_count,
    read_list,
    read_number,
    read_object,
    read_role,
    read_stop,
    read_text,
    refuse,
    sse,
)
from turnwise.gateway.reply_rules import make_rule, read_choice, read_format

ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
WISHES = ("model", "max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "thinking", "tool_choice")
"""Settings to record."""
INVALID_JSON = "INVALID_JSON"
"""Key under which arguments that are not a JSON object are shown: a `tool_use` block must have one."""
BILLING_HEADER = "x-anthropic-billing-header:"
"""Start of a system block in which Claude Code sends a hash of each request. The model must not see it: it changes with
every call, which would start a new context."""
STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
ERROR_TYPES: dict[ErrorKind, str] = {
    "invalid_request": "invalid_request_error",
    "context_length": "invalid_request_error",
    "authentication": "authentication_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "conflict": "invalid_request_error",
    "overloaded": "overloaded_error",
    "internal": "api_error",
}


def parse(body: Mapping[str, Any]) -> ChatRequest:
    """Read a request. Raises RequestError."""
    _refuse_unsupported(body)
    rows = enumerate(read_list(body, "messages"))
    messages = _merge_assistants([message for index, row in rows for message in _messages(row, index)])
    if not messages:
        raise RequestError("messages", "must have at least one message")
    if messages[-1].role == "assistant":
        raise RequestError("messages", "must not end with an assistant message: prefill is not supported")
    choice = read_choice(body.get("tool_choice"), "tool_choice", _tools(body))
    output = read_object(body.get("output_config") or {}, "output_config")
    return ChatRequest(
        messages=(*_system(body), *messages),
        tools=choice.tools,
        rule=make_rule(read_format(output.get("format"), "output_config.format"), "output_config.format", choice),
        max_tokens=read_count(body, "max_tokens"),
        temperature=read_number(body, "temperature"),
        stop=read_stop(read_list(body, "stop_sequences"), "stop_sequences"),
        stream=bool(body.get("stream")),
        shows_thinking=_type_of(body, "thinking") not in ("", "disabled"),
        wishes=read_wishes(body, WISHES),
    )


def response(request: ChatRequest, replies: Sequence[ChatReply], model: str) -> dict[str, Any]:
    """Return the body of a reply that is not streamed."""
    [reply] = replies
    return {
        **_head(reply, model),
        "content": _blocks(request, reply),
        **_stop(request, reply),
        "usage": _usage(reply, reply.sampled_tokens),
    }


def events(request: ChatRequest, replies: Sequence[ChatReply], model: str) -> Iterator[bytes]:
    """Yield the server-sent events of a finished reply: each block with its start, its content and its end."""
    [reply] = replies
    start = {**_head(reply, model), "content": [], "stop_reason": None, "stop_sequence": None}
    yield _event("message_start", message={**start, "usage": _usage(reply, 0)})
    yield _event("ping")
    for index, block in enumerate(_blocks(request, reply)):
        empty, deltas = _split(block)
        yield _event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta=_stop(request, reply), usage=_usage(reply, reply.sampled_tokens))
    yield _event("message_stop")


def error(status: int, kind: ErrorKind, message: str) -> dict[str, Any]:
    """Return the body of an error. Clients recognise a full context by "prompt is too long"."""
    text = f"prompt is too long: {message}" if kind == "context_length" else message
    return {"type": "error", "error": {"type": ERROR_TYPES[kind], "message": text}}


def error_event(status: int, kind: ErrorKind, message: str) -> bytes:
    """Return an error as a server-sent event."""
    return sse(error(status, kind, message), "error")


def token_count(tokens: int) -> dict[str, Any]:
    """Return the body of a reply to count_tokens."""
    return {"input_tokens": tokens}


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    refuse(body, "mcp_servers", "connect to the servers in the agent and send their tools")
    refuse(body, "container", "run code in the agent")


def _type_of(body: Mapping[str, Any], name: str) -> str:
    """Return the type of a setting such as {"type": "auto"}; empty if it is missing or null."""
    value = body.get(name)
    return "" if value is None else read_text(read_object(value, name).get("type"), f"{name}.type")


def _system(body: Mapping[str, Any]) -> Iterator[Message]:
    rows = [] if body.get("system") is None else _rows(body["system"], "system")
    shown = [row for row in rows if not str(row.get("text")).startswith(BILLING_HEADER)]
    if shown:
        yield Message(role="system", parts=_parts(shown, "system"))


def _tools(body: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    return tuple(_tool(tool, f"tools.{index}") for index, tool in enumerate(read_list(body, "tools")))


def _tool(value: Any, param: str) -> ToolSpec:
    tool = read_object(value, param)
    if tool.get("type") not in (None, "custom"):
        raise RequestError(f"{param}.type", f"{tool['type']!r} is not supported: send a custom tool")
    return ToolSpec(
        name=read_text(tool.get("name"), f"{param}.name"),
        description=read_text(tool.get("description") or "", f"{param}.description"),
        parameters=read_object(tool.get("input_schema"), f"{param}.input_schema"),
    )


def _messages(value: Any, index: int) -> Iterator[Message]:
    """Yield one message of the request as messages of ours: each tool result is one of its own, in order."""
    row = read_object(value, f"messages.{index}")
    role = read_role(row, ROLES, f"messages.{index}")
    param = f"messages.{index}.content"
    blocks = _rows(row.get("content"), param)
    if role == "assistant":
        yield _assistant(blocks, param)
        return
    results = [position for position, block in enumerate(blocks) if block.get("type") == "tool_result"]
    start = 0
    for position in [*results, len(blocks)]:
        if position > start or not blocks:
            yield Message(role=role, parts=_parts(blocks[start:position], param))
        if position < len(blocks):
            yield _tool_result(blocks[position], f"{param}.{position}")
        start = position + 1


def _merge_assistants(messages: Sequence[Message]) -> list[Message]:
    """Merge consecutive assistant messages, as the provider does: clients may send each block as one."""
    merged: list[Message] = []
    for message in messages:
        if message.role == "assistant" and merged and merged[-1].role == "assistant":
            before = merged.pop()
            calls = before.tool_calls + message.tool_calls
            message = replace(message, parts=join_texts([*before.parts, *message.parts]), tool_calls=calls)
        merged.append(message)
    return merged


def _assistant(blocks: Sequence[Mapping[str, Any]], param: str) -> Message:
    hidden = ("thinking", "redacted_thinking", "tool_use")
    texts = [block for block in blocks if block.get("type") not in hidden]
    calls = [_call(block, f"{param}.{index}") for index, block in enumerate(blocks) if block.get("type") == "tool_use"]
    thoughts = [read_text(block.get("thinking"), param) for block in blocks if block.get("type") == "thinking"]
    parts = add_thinking("\n".join(thoughts), _parts(texts, param))
    return Message(role="assistant", parts=parts, tool_calls=tuple(calls))


def _tool_result(block: Mapping[str, Any], param: str) -> Message:
    content = block.get("content")
    parts = () if content is None else _parts(_rows(content, f"{param}.content"), f"{param}.content")
    return Message(role="tool", parts=parts, call_id=read_text(block.get("tool_use_id"), f"{param}.tool_use_id"))


def _rows(content: Any, param: str) -> list[Mapping[str, Any]]:
    """Return content as a list of blocks; a text is one block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise RequestError(param, "must be text or a list of blocks")
    return [read_object(block, f"{param}.{index}") for index, block in enumerate(content)]


def _parts(blocks: Sequence[Mapping[str, Any]], param: str) -> tuple[ContentPart, ...]:
    return join_texts([_part(block, param) for block in blocks])


def _part(block: Mapping[str, Any], param: str) -> ContentPart:
    match block.get("type"):
        case "text":
            return TextPart(text=read_text(block.get("text"), f"{param}.text"))
        case "image":
            source = read_object(block.get("source"), f"{param}.source")
            if source.get("type") != "base64":
                raise RequestError(f"{param}.source.type", "must be base64: the gateway does not fetch images")
            return image_from_base64(read_text(source.get("data"), f"{param}.source.data"), f"{param}.source.data")
    raise RequestError(f"{param}.type", f"{block.get('type')!r} is not supported here: use text or image")


def _call(block: Mapping[str, Any], param: str) -> ToolCall:
    """Return the call that `_tool_use` showed, with the model's own text if that is not a JSON object."""
    given = read_object(block.get("input"), f"{param}.input")
    invalid = given.get(INVALID_JSON) if len(given) == 1 else None
    return ToolCall(
        name=read_text(block.get("name"), f"{param}.name"),
        arguments=invalid if isinstance(invalid, str) else json.dumps(given, ensure_ascii=False),
        call_id=read_text(block.get("id"), f"{param}.id"),
    )


def _head(reply: ChatReply, model: str) -> dict[str, Any]:
    return {"id": f"msg_{reply.call}", "type": "message", "role": "assistant", "model": model}


def _stop(request: ChatRequest, reply: ChatReply) -> dict[str, Any]:
    if reply.stop == "stop" and reply.stop_string in request.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": reply.stop_string}
    return {"stop_reason": STOP_REASONS[reply.stop], "stop_sequence": None}


def _usage(reply: ChatReply, output_tokens: int) -> dict[str, Any]:
    cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    return {"input_tokens": reply.prompt_tokens, **cache, "output_tokens": output_tokens}


def _blocks(request: ChatRequest, reply: ChatReply) -> list[dict[str, Any]]:
    """Return the blocks of a reply: one at least, because agents read `content[0]`."""
    blocks: list[dict[str, Any]] = []
    if reply.thinking and request.shows_thinking:
        blocks.append({"type": "thinking", "thinking": reply.thinking, "signature": reply.call})
    if reply.message.content or not reply.message.tool_calls:
        blocks.append({"type": "text", "text": reply.message.content})
    return [*blocks, *(_tool_use(call) for call in reply.message.tool_calls)]


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": _input(call.arguments)}


def _input(arguments: str) -> dict[str, Any]:
    """Return the arguments as an object that JSON can hold."""
    try:
        value = json.loads(arguments)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return {INVALID_JSON: arguments}
    return value if isinstance(value, dict) else {INVALID_JSON: arguments}


def _split(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block as it starts, and the deltas that complete it."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            thinking = {"type": "thinking_delta", "thinking": block["thinking"]}
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [thinking, signature]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]


def _event(name: str, **data: Any) -> bytes:
    return sse({"type": name, **data}, name)
