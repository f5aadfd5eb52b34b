"""Bodies and replies of the dialects for tests."""

import copy
import json
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import strategies as st

from turnwise.core.messages import Message, ToolCall, text_parts
from turnwise.gateway.chat import ChatReply

PNG = "iVBORw0KGgo="
TEXT = {"input": {"type": "input_text", "text": "go on"}, "messages": {"type": "text", "text": "go on"}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

ANTHROPIC: dict[str, Any] = {
    "model": "claude",
    "max_tokens": 100,
    "temperature": 0.5,
    "stop_sequences": ["END"],
    "stream": False,
    "thinking": {"type": "adaptive"},
    "tool_choice": {"type": "auto"},
    "metadata": {"user_id": "me"},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=fa690;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ],
    "tools": [{"name": "weather", "description": "Weather of a city.", "input_schema": PARAMETERS}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Ulm"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sun"}]},
                {"type": "text", "text": "and?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            ],
        },
    ],
}

RESPONSES: dict[str, Any] = {
    "model": "gpt",
    "instructions": "Be brief.",
    "max_output_tokens": 100,
    "temperature": 0.5,
    "stream": False,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "metadata": {"run": "1"},
    "text": {"verbosity": "low"},
    "tool_choice": "auto",
    "tools": [
        {"type": "function", "name": "weather", "description": "Weather of a city.", "parameters": PARAMETERS},
        {"type": "custom", "name": "apply_patch", "description": "Patch.", "format": {"type": "grammar"}},
        {"type": "namespace", "name": "mcp__disk", "description": "", "tools": [{"type": "function", "name": "read"}]},
        {"type": "web_search"},
    ],
    "input": [
        {"role": "developer", "content": "Use tools."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Ulm"}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin"},
        {"type": "function_call", "call_id": "c3", "name": "read", "namespace": "mcp__disk", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "function_call_output", "call_id": "c3", "output": ""},
        {"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}]},
    ],
}


CHAT: dict[str, Any] = {
    "model": "gpt",
    "temperature": 0.5,
    "max_tokens": 5,
    "n": 2,
    "stop": ["END"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}],
    "functions": [{"name": "g"}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "y"},
    ],
}

SCALARS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats()),
    st.text(st.characters(codec=None), max_size=5),  # unpaired surrogates too
    st.sampled_from(
        ["text", "image", "tool_use", "tool_result", "function_call", "message", "namespace", "none", "auto"]
    ),
)
NAMES = ("type", "role", "content", "text", "id", "name", "input", "tools", "function", "source", "format")
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)


def without_image(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body for a model that reads text only: the images are the last parts of the last messages."""
    name = "input" if "input" in body else "messages"
    *rest, last = body[name]
    return {**body, name: [*rest, {**last, "content": [*last["content"][:-1], TEXT[name]]}]}


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*prefix, key)
        yield from paths(inner, (*prefix, key))


def changed(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return the body with another value at a path; the value ... deletes it."""
    found = copy.deepcopy(body)
    target: Any = found
    for key in path[:-1]:
        target = target[key]
    if value is ...:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    return found


def bodies(body: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a body with one value changed or deleted."""
    return st.builds(changed, st.just(body), st.sampled_from(list(paths(body))), st.just(...) | JSON)


def reply(
    content: str = "", calls: Iterable[tuple[str, str]] = (), *, thinking: str = "", stop: Any = None
) -> ChatReply:
    """Return a reply with calls (name, arguments)."""
    named = tuple(
        ToolCall(name=name, arguments=arguments, call_id=f"call_{number}")
        for number, (name, arguments) in enumerate(calls)
    )
    return ChatReply(
        message=Message(role="assistant", parts=text_parts(content), tool_calls=named),
        thinking=thinking,
        stop=stop or ("tool_calls" if named else "stop"),
        prompt_tokens=7,
        sampled_tokens=3,
        policy_version=2,
        call="a1",
    )


def read_events(chunks: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the data of server-sent events, after checking that the name of each is its type."""
    events = []
    for chunk in chunks:
        name, data, *rest = chunk.decode().split("\n")
        assert rest == ["", ""]
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events
