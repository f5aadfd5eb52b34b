"""OpenAI Responses: requests, replies and server-sent events.

A reply is a reasoning item if the model thought, a message, and its calls, in this order.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnwise.core.messages import ContentPart, Message, Role, TextPart, ToolCall, ToolSpec, system
from turnwise.gateway.chat import ChatReply, ChatRequest, RequestError, read_wishes
from turnwise.gateway.fields import (
    add_thinking,
    join_texts,
    read_count,
    read_image,
    read_list,
    read_number,
    read_object,
    read_role,
    read_text,
    read_tool,
    refuse,
    sse,
)
from turnwise.gateway.openai_chat import error, error_event
from turnwise.gateway.reply_rules import make_rule, read_choice, read_format
from turnwise.text.json_objects import parse_object

__all__ = ["ResponseHistory", "error", "error_event", "events", "parse", "response", "token_count"]

Events = Iterator[tuple[str, dict[str, Any]]]
"""(name, data) of server-sent events that have no number yet."""

ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
WISHES = ("model", "max_output_tokens", "temperature", "top_p", "reasoning", "tool_choice", "parallel_tool_calls")
"""Settings to record."""
ECHOED: dict[str, Any] = {
    "instructions": None,
    "metadata": {},
    "previous_response_id": None,
    "max_output_tokens": None,
    "user": None,
    "temperature": 1.0,
    "top_p": 1.0,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "tools": [],
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}},
    "store": True,
}
"""Settings that a response repeats, with their values where the request has none."""
RESPONSE_PREFIX = "resp_"
OMITTED_TOOLS = ("web_search", "web_search_preview", "image_generation", "tool_search")
"""Tools that the provider runs and Codex always offers. The model does not see them, so that it cannot call them."""
CUSTOM_PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""Parameters of a custom tool, whose input is text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTool:
    """A tool as the model sees it, and how the client names it."""

    spec: ToolSpec
    name: str
    namespace: str
    """Group of the tool; empty if it has none."""
    custom: bool
    """Its input is text instead of JSON."""


MAX_RESPONSES = 1000
"""Responses that an episode remembers for `previous_response_id`."""


class ResponseHistory:
    """Items of an episode's responses, for requests with `previous_response_id`. Equal items are kept once."""

    def __init__(self) -> None:
        self._items: dict[str, Mapping[str, Any]] = {}
        self._responses: dict[str, tuple[Mapping[str, Any], ...]] = {}

    def resolve(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body with the items up to its `previous_response_id` before its own. Raises RequestError.

        The instructions of earlier responses are not carried over. Bodies of other dialects stay as they are.
        """
        if body.get("previous_response_id") is None:
            return body
        previous = read_text(body["previous_response_id"], "previous_response_id")
        if previous not in self._responses:
            raise RequestError("previous_response_id", f"{previous[:80]!r} is not a response of this episode")
        return {**body, "input": [*self._responses[previous], *_items(body)]}

    def add(self, request: ChatRequest, replies: Sequence[ChatReply]) -> None:
        """Keep the items of a request and its reply, with calls as the model sees them. Other dialects have none."""
        if "items" in request.options:
            [reply] = replies
            self._keep(request.options["items"], reply)

    def describe(self, request: ChatRequest) -> dict[str, Any] | None:
        """Return what `restore` needs: the response before, and the request's own items. Other dialects have none."""
        if "items" not in request.options:
            return None
        previous = request.options["echo"].get("previous_response_id")
        earlier = self._responses.get(previous, ())
        return {"previous": previous if earlier else None, "items": request.options["items"][len(earlier) :]}

    def restore(self, described: Mapping[str, Any], reply: ChatReply) -> None:
        """Keep the items of a stored call. Earlier calls come first."""
        self._keep([*self._responses.get(described["previous"], ()), *described["items"]], reply)

    def _keep(self, given: Sequence[Mapping[str, Any]], reply: ChatReply) -> None:
        items = [*given, *_output(reply, {})]
        kept = tuple(self._items.setdefault(json.dumps(item, sort_keys=True), item) for item in items)
        self._responses[f"{RESPONSE_PREFIX}{reply.call}"] = kept
        if len(self._responses) > MAX_RESPONSES:
            self._forget_older_half()

    def _forget_older_half(self) -> None:
        self._responses = dict(list(self._responses.items())[MAX_RESPONSES // 2 :])
        kept = {id(item) for items in self._responses.values() for item in items}
        self._items = {name: item for name, item in self._items.items() if id(item) in kept}


def parse(body: Mapping[str, Any]) -> ChatRequest:
    """Read a request. Raises RequestError."""
    _refuse_unsupported(body)
    instructions = body.get("instructions")
    first = [system(read_text(instructions, "instructions"))] if instructions else []
    items = _items(body)
    messages = _messages(items)
    if not messages:
        raise RequestError("input", "must have at least one message")
    tools = _tools_by_name(body)
    choice = read_choice(body.get("tool_choice"), "tool_choice", [tool.spec for tool in tools.values()])
    text = read_object(body.get("text") or {}, "text")
    return ChatRequest(
        messages=(*first, *messages),
        tools=choice.tools,
        rule=make_rule(read_format(text.get("format"), "text.format"), "text.format", choice),
        max_tokens=read_count(body, "max_output_tokens"),
        temperature=read_number(body, "temperature"),
        stream=bool(body.get("stream")),
        options={
            "items": items,
            "tools": tools,
            "echo": {name: body[name] for name in ECHOED if body.get(name) is not None},
        },
        wishes=read_wishes(body, WISHES),
    )


def response(request: ChatRequest, replies: Sequence[ChatReply], model: str) -> dict[str, Any]:
    """Return the body of a reply that is not streamed."""
    [reply] = replies
    cut = reply.stop == "length"
    return {
        **_head(request, reply, model),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _output(reply, request.options["tools"]),
        "usage": _usage(reply),
    }


def events(request: ChatRequest, replies: Sequence[ChatReply], model: str) -> Iterator[bytes]:
    """Yield the server-sent events of a finished reply: each item with its start, its content and its end."""
    for number, (name, data) in enumerate(_events(request, replies, model)):
        yield sse({"type": name, "sequence_number": number, **data}, name)


def token_count(tokens: int) -> dict[str, Any]:
    """Return the body of a reply to input_tokens."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    refuse(body, "background", "wait for the reply")
    refuse(body, "conversation", "use previous_response_id")
    refuse(body, "prompt", "send the text of the prompt as instructions and input")
    refuse(body, "top_logprobs", "the gateway records log-probabilities itself")
    if body.get("truncation") == "auto":
        raise RequestError("truncation", "'auto' is not supported: shorten the input in the agent")


def _tools_by_name(body: Mapping[str, Any]) -> dict[str, ResponseTool]:
    """Return the tools by the name that the model sees."""
    tools = [tool for index, row in enumerate(read_list(body, "tools")) for tool in _tools(row, f"tools.{index}")]
    return {tool.spec.name: tool for tool in tools}


def _tools(value: Any, param: str, namespace: str = "") -> Iterator[ResponseTool]:
    row = read_object(value, param)
    match row.get("type"):
        case "function" | "custom" as kind:
            custom = kind == "custom"
            spec = read_tool({**row, "parameters": CUSTOM_PARAMETERS} if custom else row, param)
            seen = replace(spec, name=_seen_name(spec.name, namespace))
            yield ResponseTool(spec=seen, name=spec.name, namespace=namespace, custom=custom)
        case "namespace" if not namespace:
            name = read_text(row.get("name"), f"{param}.name")
            for index, tool in enumerate(read_list(row, "tools")):
                yield from _tools(tool, f"{param}.tools.{index}", name)
        case kind if kind not in OMITTED_TOOLS:
            raise RequestError(f"{param}.type", f"{kind!r} is not supported: use functions")


def _seen_name(name: str, namespace: str) -> str:
    return f"{namespace.rstrip('_')}__{name}" if namespace else name


def _items(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the input as items; a text is a message of the user."""
    given = body.get("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return [read_object(item, f"input.{index}") for index, item in enumerate(read_list(body, "input"))]


def _messages(items: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return items as messages: a call joins the assistant message or the call right before it.

    Reasoning belongs to the assistant message or the call right after it.
    """
    messages: list[Message] = []
    before, thinking = "", ""
    for index, item in enumerate(items):
        param, kind = f"input.{index}", item.get("type", "message")
        if kind == "reasoning":
            thinking = _thinking(item, param)
        elif kind in ("function_call", "custom_tool_call"):
            calls = (_call(item, param),)
            if before in ("function_call", "custom_tool_call", "message") and messages[-1].role == "assistant":
                messages[-1] = replace(messages[-1], tool_calls=messages[-1].tool_calls + calls)
            else:
                messages.append(Message(role="assistant", parts=add_thinking(thinking, ()), tool_calls=calls))
        else:
            message = _message(item, kind, param)
            if message.role == "assistant":
                message = replace(message, parts=add_thinking(thinking, message.parts))
            messages.append(message)
        thinking = thinking if kind == "reasoning" else ""
        before = kind
    return messages


def _thinking(item: Mapping[str, Any], param: str) -> str:
    """Return the text of a reasoning item."""
    rows = [read_object(part, param) for part in read_list(item, "content") or read_list(item, "summary")]
    return "\n".join(read_text(row.get("text"), param) for row in rows)


def _message(item: Mapping[str, Any], kind: Any, param: str) -> Message:
    match kind:
        case "message":
            role = read_role(item, ROLES, param)
            return Message(role=role, parts=_parts(item.get("content"), f"{param}.content"))
        case "function_call_output" | "custom_tool_call_output":
            call_id = read_text(item.get("call_id"), f"{param}.call_id")
            return Message(role="tool", parts=_parts(item.get("output"), f"{param}.output"), call_id=call_id)
    raise RequestError(f"{param}.type", f"{kind!r} is not supported: use messages, function calls and their outputs")


def _parts(content: Any, param: str) -> tuple[ContentPart, ...]:
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    if not isinstance(content, list):
        raise RequestError(param, "must be text or a list of parts")
    return join_texts([_part(read_object(part, f"{param}.{i}"), f"{param}.{i}") for i, part in enumerate(content)])


def _part(part: Mapping[str, Any], param: str) -> ContentPart:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return TextPart(text=read_text(part.get("text"), f"{param}.text"))
        case "refusal":
            return TextPart(text=read_text(part.get("refusal"), f"{param}.refusal"))
        case "input_image":
            return read_image(read_text(part.get("image_url"), f"{param}.image_url"), f"{param}.image_url")
    raise RequestError(f"{param}.type", f"{part.get('type')!r} is not supported: use input_text or input_image")


def _call(item: Mapping[str, Any], param: str) -> ToolCall:
    name = read_text(item.get("name"), f"{param}.name")
    namespace = read_text(item.get("namespace") or "", f"{param}.namespace")
    if item["type"] == "custom_tool_call":
        given = {"input": read_text(item.get("input"), f"{param}.input")}
        arguments = json.dumps(given, ensure_ascii=False)
    else:
        arguments = read_text(item.get("arguments"), f"{param}.arguments")
    call_id = read_text(item.get("call_id"), f"{param}.call_id")
    return ToolCall(name=_seen_name(name, namespace), arguments=arguments, call_id=call_id)


def _head(request: ChatRequest, reply: ChatReply, model: str) -> dict[str, Any]:
    return {
        "id": f"{RESPONSE_PREFIX}{reply.call}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "error": None,
        "incomplete_details": None,
        "background": False,
        "truncation": "disabled",
        **ECHOED,
        **request.options["echo"],
    }


def _usage(reply: ChatReply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": reply.sampled_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
    }


def _output(reply: ChatReply, tools: Mapping[str, ResponseTool]) -> list[dict[str, Any]]:
    """Return the items of a reply; a message is always there unless there are calls."""
    items: list[dict[str, Any]] = []
    if reply.thinking:
        content = [{"type": "reasoning_text", "text": reply.thinking}]
        items.append({"type": "reasoning", "id": f"rs_{reply.call}", "summary": [], "content": content})
    if reply.message.content or not reply.message.tool_calls:
        part = {"type": "output_text", "text": reply.message.content, "annotations": [], "logprobs": []}
        status = "incomplete" if reply.stop == "length" else "completed"
        identity = {"type": "message", "id": f"msg_{reply.call}", "role": "assistant", "status": status}
        items.append({**identity, "content": [part]})
    calls = enumerate(reply.message.tool_calls)
    return [*items, *(_call_item(call, f"fc_{reply.call}_{index}", tools.get(call.name)) for index, call in calls)]


def _call_item(call: ToolCall, item_id: str, tool: ResponseTool | None) -> dict[str, Any]:
    """Return a call as the client names it; a tool that the client does not have is shown as written."""
    item: dict[str, Any] = {"id": item_id, "call_id": call.call_id, "name": tool.name if tool else call.name}
    if tool is not None and tool.namespace:
        item["namespace"] = tool.namespace
    if tool is not None and tool.custom:
        return {"type": "custom_tool_call", "status": "completed", **item, "input": _custom_input(call.arguments)}
    return {"type": "function_call", "status": "completed", **item, "arguments": call.arguments}


def _custom_input(arguments: str) -> str:
    """Return the text for a custom tool; arguments of another form as written."""
    given = parse_object(arguments)
    text = given.get("input") if given is not None and len(given) == 1 else None
    return text if isinstance(text, str) else arguments


def _events(request: ChatRequest, replies: Sequence[ChatReply], model: str) -> Events:
    finished = response(request, replies, model)
    started = {**finished, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield "response.created", {"response": started}
    yield "response.in_progress", {"response": started}
    for index, item in enumerate(finished["output"]):
        start, content = _split(item, {"item_id": item["id"], "output_index": index})
        yield "response.output_item.added", {"output_index": index, "item": {**start, "status": "in_progress"}}
        yield from content
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{finished['status']}", {"response": finished}


def _split(item: Mapping[str, Any], where: Mapping[str, Any]) -> tuple[dict[str, Any], Events]:
    """Return an item as it starts, and the events that complete it."""
    match item["type"]:
        case "function_call":
            return {**item, "arguments": ""}, _field_events("function_call_arguments", "arguments", item, where)
        case "custom_tool_call":
            return {**item, "input": ""}, _field_events("custom_tool_call_input", "input", item, where)
    return {**item, "content": []}, _part_events(item["content"][0], {**where, "content_index": 0})


def _field_events(name: str, field: str, item: Mapping[str, Any], where: Mapping[str, Any]) -> Events:
    yield f"response.{name}.delta", {**where, "delta": item[field]}
    yield f"response.{name}.done", {**where, field: item[field], "name": item["name"]}


def _part_events(part: Mapping[str, Any], where: Mapping[str, Any]) -> Events:
    logprobs: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
    yield "response.content_part.added", {**where, "part": {**part, "text": ""}}
    yield f"response.{part['type']}.delta", {**where, "delta": part["text"], **logprobs}
    yield f"response.{part['type']}.done", {**where, "text": part["text"], **logprobs}
    yield "response.content_part.done", {**where, "part": part}
