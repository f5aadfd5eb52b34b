"""JSON of the chat API: messages and tools as requests, answers as replies.

An answer may hold anything at all; one that is not a chat completion raises `MalformedReply`.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnwise.core.messages import (
    Message,
    TextPart,
    ToolCall,
    ToolSpec,
    text_parts,
    tool_schema,
)
from turnwise.core.trajectory import Stop

IMAGE_TYPES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}


def message_json(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.tool_calls:
        row["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        row["tool_call_id"] = message.call_id
    return row


def tools_json(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    return [*map(tool_schema, tools)]


def _content(message: Message) -> str | list[dict[str, Any]]:
    """Return plain text, or a list of parts where the message has images."""
    if not message.images:
        return message.content
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image_url", "image_url": {"url": _data_url(part.data)}}
        for part in message.parts
    ]


def _data_url(image: bytes) -> str:
    mime = next((mime for magic, mime in IMAGE_TYPES.items() if image.startswith(magic)), "image/png")
    return f"data:{mime};base64,{base64.b64encode(image).decode('ascii')}"


MAX_CHARS = 200_000
"""Length at which a message and a call's arguments are cut."""
MAX_CALLS = 64
MAX_COUNT = 10**9


class MalformedReply(Exception):
    """The endpoint's answer is not a chat completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One turn of the model. Token counts are the endpoint's; None if it gives none."""

    message: Message
    stop: Stop
    prompt_tokens: int | None
    sampled_tokens: int | None
    retries: int = 0
    """Times that the request was retried."""
    reasoning_tokens: int = 0
    """Part of `sampled_tokens` that is not in the message; 0 if the endpoint does not count it."""
    reasoned: bool = False
    """True if the model reasoned before it answered."""

    @property
    def only_reasoned(self) -> bool:
        """True if reasoning took the whole token budget, so that there is no answer."""
        empty = not self.message.content.strip() and not self.message.tool_calls
        return self.reasoned and self.stop is Stop.LENGTH and empty

    @classmethod
    def out_of_tokens(cls) -> "Reply":
        """Return the reply of a model that reports only that its token budget was used up by reasoning."""
        nothing = Message(role="assistant", parts=text_parts(""))
        return cls(message=nothing, stop=Stop.LENGTH, prompt_tokens=None, sampled_tokens=None, reasoned=True)


def parse_reply(data: bytes) -> Reply:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise MalformedReply("its answer is not JSON") from error
    choice = _first(_field(answer, "choices"))
    message = _field(choice, "message")
    if not isinstance(message, dict):
        raise MalformedReply("its answer has no message")
    usage = _field(answer, "usage")
    reasoning_tokens = _count(_field(_field(usage, "completion_tokens_details"), "reasoning_tokens")) or 0
    return Reply(
        message=Message(role="assistant", parts=text_parts(_text(message.get("content"))), tool_calls=_calls(message)),
        stop=Stop.LENGTH if _field(choice, "finish_reason") == "length" else Stop.EOS,
        prompt_tokens=_count(_field(usage, "prompt_tokens")),
        sampled_tokens=_count(_field(usage, "completion_tokens")),
        reasoning_tokens=reasoning_tokens,
        # OpenAI counts reasoning tokens; vLLM and others show the reasoning beside the content
        reasoned=bool(reasoning_tokens or message.get("reasoning_content") or message.get("reasoning")),
    )


def cut_at_stop(reply: Reply, stop: Sequence[str]) -> Reply:
    """Cut the text before the first stop string, as endpoints do that take `stop`."""
    text = reply.message.content
    ends = [end for stop_string in stop if (end := text.find(stop_string)) >= 0]
    if not ends:
        return reply
    return replace(reply, message=replace(reply.message, parts=text_parts(text[: min(ends)])), stop=Stop.EOS)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, list) and values else None


def _text(content: Any) -> str:
    """Return the text of a string or of a list of parts; empty for a message that only calls tools."""
    if content is None:
        return ""
    if isinstance(content, list):
        content = "".join(part for part in (_field(item, "text") for item in content) if isinstance(part, str))
    if not isinstance(content, str):
        raise MalformedReply("its message is not text")
    return replace_surrogates(content)[:MAX_CHARS]


def replace_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which JSON can express and UTF-8 cannot."""
    return text.encode(errors="replace").decode()


def _calls(message: dict[str, Any]) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    return tuple(_read_calls(calls[:MAX_CALLS])) if isinstance(calls, list) else ()


def _read_calls(calls: Sequence[Any]) -> Iterator[ToolCall]:
    """Yield the calls that have a name and arguments; malformed ones are skipped."""
    for number, call in enumerate(calls):
        function, call_id = _field(call, "function"), _field(call, "id")
        name, arguments = _field(function, "name"), _field(function, "arguments")
        if isinstance(name, str) and isinstance(arguments, str):
            yield ToolCall(
                name=replace_surrogates(name)[:MAX_CHARS],
                arguments=replace_surrogates(arguments)[:MAX_CHARS],
                call_id=call_id[:MAX_CHARS] if isinstance(call_id, str) else f"call{number:05d}",
            )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else None
