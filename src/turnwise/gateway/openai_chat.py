"""OpenAI Chat Completions: requests, replies and server-sent events.

`data/conversations.py` reads such messages from files too. Its errors name a file and line, those here the field of a
request, and files hold forms that the API does not have.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.core.messages import ContentPart, Message, Role, TextPart, ToolCall, ToolSpec, text_parts
from turnwise.gateway.chat import ChatReply, ChatRequest, ErrorKind, RequestError, read_wishes
from turnwise.gateway.fields import (
    add_thinking,
    join_texts,
    read_count,
    read_image,
    read_list,
    read_number,
    read_object,
    read_role,
    read_stop,
    read_text,
    read_tool,
    sse,
)
from turnwise.gateway.reply_rules import ToolChoice, make_rule, read_choice, read_format

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
MAX_CHOICES = 64
"""Most replies to one request."""
WISHES = (
    *("model", "temperature", "top_p", "n", "stop", "max_tokens", "max_completion_tokens", "seed", "tool_choice"),
    *("response_format", "frequency_penalty", "presence_penalty", "reasoning_effort", "logprobs"),
)
"""Settings to record."""
ERROR_TYPES: dict[ErrorKind, tuple[str, str | None]] = {
    "invalid_request": ("invalid_request_error", None),
    "context_length": ("invalid_request_error", "context_length_exceeded"),
    "authentication": ("invalid_request_error", "invalid_api_key"),
    "not_found": ("invalid_request_error", "unknown_url"),
    "too_large": ("invalid_request_error", None),
    "conflict": ("conflict_error", "episode_closed"),
    "overloaded": ("server_error", "overloaded"),
    "internal": ("server_error", None),
}
"""Type and code of errors."""


def parse(body: Mapping[str, Any]) -> ChatRequest:
    """Read a request. Raises RequestError."""
    messages = read_list(body, "messages")
    if not messages:
        raise RequestError("messages", "must have at least one message")
    choice = _tool_choice(body)
    return ChatRequest(
        messages=tuple(_message(message, f"messages.{index}") for index, message in enumerate(messages)),
        tools=choice.tools,
        rule=make_rule(read_format(body.get("response_format"), "response_format"), "response_format", choice),
        max_tokens=_max_tokens(body),
        temperature=read_number(body, "temperature"),
        stop=read_stop(body.get("stop"), "stop"),
        n=read_count(body, "n", most=MAX_CHOICES) or 1,
        stream=bool(body.get("stream")),
        options={"include_usage": _includes_usage(body)},
        wishes=read_wishes(body, WISHES),
    )


def response(request: ChatRequest, replies: Sequence[ChatReply], model: str) -> dict[str, Any]:
    """Return the body of a reply that is not streamed."""
    choices = [
        {"index": index, "message": _reply_json(reply), "logprobs": None, "finish_reason": reply.stop}
        for index, reply in enumerate(replies)
    ]
    return {**_head(replies, model, "chat.completion"), "choices": choices, "usage": _usage(replies)}


def events(request: ChatRequest, replies: Sequence[ChatReply], model: str) -> Iterator[bytes]:
    """Yield the server-sent events of a finished reply: per choice its role, its content, its calls and its end."""
    head = _head(replies, model, "chat.completion.chunk")
    usage = {"usage": None} if request.options.get("include_usage") else {}
    for index, reply in enumerate(replies):
        for delta in _deltas(reply):
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            yield sse({**head, "choices": [choice], **usage})
        end = {"index": index, "delta": {}, "logprobs": None, "finish_reason": reply.stop}
        yield sse({**head, "choices": [end], **usage})
    if usage:
        yield sse({**head, "choices": [], "usage": _usage(replies)})
    yield b"data: [DONE]\n\n"


def error(status: int, kind: ErrorKind, message: str) -> dict[str, Any]:
    """Return the body of an error."""
    type_, code = ERROR_TYPES[kind]
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


def error_event(status: int, kind: ErrorKind, message: str) -> bytes:
    """Return an error as a server-sent event."""
    return sse(error(status, kind, message))


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    newer = read_count(body, "max_completion_tokens")
    return read_count(body, "max_tokens") if newer is None else newer


def _includes_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _tool_choice(body: Mapping[str, Any]) -> ToolChoice:
    """Read `tool_choice`, or `function_call` of older clients, which has the name without a type."""
    older = body.get("function_call")
    if body.get("tool_choice") is None and older is not None:
        value = {"type": "function", "function": older} if isinstance(older, dict) else older
        return read_choice(value, "function_call", _tools(body))
    return read_choice(body.get("tool_choice"), "tool_choice", _tools(body))


def _tools(body: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    tools = [_tool(tool, f"tools.{index}") for index, tool in enumerate(read_list(body, "tools"))]
    older = enumerate(read_list(body, "functions"))
    return (*tools, *(read_tool(function, f"functions.{index}") for index, function in older))


def _tool(tool: Any, param: str) -> ToolSpec:
    tool = read_object(tool, param)
    if tool.get("type") != "function":
        raise RequestError(f"{param}.type", f"{tool.get('type')!r} is not supported: use functions")
    return read_tool(tool.get("function"), f"{param}.function")


def _message(value: Any, param: str) -> Message:
    row = read_object(value, param)
    role = read_role(row, ROLES, param)
    thinking = row.get("reasoning_content") or row.get("reasoning") or "" if role == "assistant" else ""
    return Message(
        role=role,
        parts=add_thinking(read_text(thinking, param), _parts(row.get("content"), f"{param}.content")),
        tool_calls=_calls(row, param),
        call_id=read_text(row.get("tool_call_id") or row.get("name") or "", param) if role == "tool" else "",
    )


def _parts(content: Any, param: str) -> tuple[ContentPart, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return text_parts(read_text(content, param))
    if not isinstance(content, list):
        raise RequestError(param, "must be text or a list of parts")
    rows = [read_object(part, f"{param}.{index}") for index, part in enumerate(content)]
    return join_texts([_part(row, f"{param}.{index}") for index, row in enumerate(rows)])


def _part(part: Mapping[str, Any], param: str) -> ContentPart:
    match part.get("type"):
        case "text":
            return TextPart(text=read_text(part.get("text"), f"{param}.text"))
        case "refusal":
            return TextPart(text=read_text(part.get("refusal"), f"{param}.refusal"))
        case "image_url":
            image = read_object(part.get("image_url"), f"{param}.image_url")
            return read_image(read_text(image.get("url"), f"{param}.image_url.url"), f"{param}.image_url.url")
    raise RequestError(f"{param}.type", f"{part.get('type')!r} is not supported: use text or image_url")


def _calls(row: Mapping[str, Any], param: str) -> tuple[ToolCall, ...]:
    if row.get("role") != "assistant":
        return ()
    calls = read_list(row, "tool_calls")
    if isinstance(row.get("function_call"), dict):
        calls = [*calls, {"id": "", "function": row["function_call"]}]
    return tuple(_call(call, f"{param}.tool_calls.{index}") for index, call in enumerate(calls))


def _call(value: Any, param: str) -> ToolCall:
    call = read_object(value, param)
    function = read_object(call.get("function"), f"{param}.function")
    return ToolCall(
        name=read_text(function.get("name"), f"{param}.function.name"),
        arguments=read_text(function.get("arguments") or "", f"{param}.function.arguments"),
        call_id=read_text(call.get("id") or "", f"{param}.id"),
    )


def _head(replies: Sequence[ChatReply], model: str, kind: str) -> dict[str, Any]:
    """Return the fields of every response. Its fingerprint is the version of the weights."""
    version = replies[0].policy_version
    fingerprint = None if version is None else f"policy-{version}"
    return {
        "id": f"chatcmpl-{replies[0].call}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": fingerprint,
    }


def _reply_json(reply: ChatReply) -> dict[str, Any]:
    row: dict[str, Any] = {"role": "assistant", "content": _content(reply), "refusal": None}
    if reply.thinking:
        row["reasoning_content"] = reply.thinking
    if reply.message.tool_calls:
        row["tool_calls"] = [_call_json(call) for call in reply.message.tool_calls]
    return row


def _content(reply: ChatReply) -> str | None:
    """Return the text; null beside calls if there is none."""
    return None if reply.message.tool_calls and not reply.message.content else reply.message.content


def _call_json(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _deltas(reply: ChatReply) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "" if _content(reply) is not None else None}
    if reply.thinking:
        yield {"reasoning_content": reply.thinking}
    if reply.message.content:
        yield {"content": reply.message.content}
    for index, call in enumerate(reply.message.tool_calls):
        yield {"tool_calls": [{"index": index, **_call_json(call)}]}


def _usage(replies: Sequence[ChatReply]) -> dict[str, Any]:
    prompt, sampled = replies[0].prompt_tokens, sum(reply.sampled_tokens for reply in replies)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
