"""Equality of conversations: digests that do not depend on how a client serialises what it sends back."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from turnwise.core.messages import Message, ToolCall, ToolSpec, text_parts
from turnwise.gateway.fields import add_thinking
from turnwise.tools.call_formats import split_thinking

Digest = bytes


def digest(*parts: bytes) -> Digest:
    """Return a hash of these parts."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()


def number_calls(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Replace the ids of tool calls by their number in the assistant message, in the calls and in the answers.

    The rendered context and digests then do not depend on ids, which clients may rewrite.
    """
    numbers: dict[str, str] = {}
    numbered = []
    for message in messages:
        if message.tool_calls:
            ids = [f"call{number:05d}" for number in range(len(message.tool_calls))]
            numbers = {call.call_id: token_id for call, token_id in zip(message.tool_calls, ids, strict=True)}
            calls = tuple(
                replace(call, call_id=token_id) for call, token_id in zip(message.tool_calls, ids, strict=True)
            )
            message = replace(message, tool_calls=calls)
        elif message.role == "tool":
            message = replace(message, call_id=numbers.get(message.call_id, message.call_id))
        numbered.append(message)
    return tuple(numbered)


def digest_tools(tools: Sequence[ToolSpec]) -> Digest:
    """Return the digest that every conversation with these tools starts from."""
    rows = [[tool.name, tool.description, dict(tool.parameters)] for tool in tools]
    return digest(json.dumps(rows, sort_keys=True).encode())


def digest_message(message: Message) -> Digest:
    """Return the digest of a message.

    An assistant message is compared by its thinking, by its text without surrounding white space, and by its calls
    with canonical arguments: clients strip texts and re-serialise arguments.
    """
    thinking, content = split_thinking(message.content) if message.role == "assistant" else ("", message.content)
    if message.role == "assistant":
        content = content.strip()
    calls = [
        part for call in message.tool_calls for part in (call.name.encode(), canonical_json(call.arguments).encode())
    ]
    images = [image.data for image in message.images]
    counts = f"{len(calls)} {len(images)}".encode()
    thoughts = [thinking.encode()] if thinking else []
    return digest(message.role.encode(), content.encode(), message.call_id.encode(), counts, *calls, *images, *thoughts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationTrace:
    """The messages of a request, and the digest of the conversation up to each of them."""

    given: Sequence[Message]
    messages: tuple[Message, ...]
    """With numbered calls."""
    digests: Sequence[Digest]
    """Digests of the tools and the messages, up to and including each message."""


def trace_conversation(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ConversationTrace:
    """Compute the digests of a request."""
    numbered = number_calls(messages)
    steps = accumulate(map(digest_message, numbered), digest, initial=digest_tools(tools))
    return ConversationTrace(given=messages, messages=numbered, digests=tuple(steps)[1:])


def digest_reply(message: Message, thinking: str) -> Digest:
    """Return the digest of a reply that is sent back with this thinking."""
    (numbered,) = number_calls([replace(message, parts=add_thinking(thinking, message.parts))])
    return digest_message(numbered)


def canonical_json(text: str) -> str:
    """Return JSON with sorted keys and without white space; text that is not JSON is returned as it is."""
    try:
        value = json.loads(text or "{}", parse_float=_number)
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> Any:
    """Read 1.0 as 1, as clients in JavaScript write it."""
    value = float(text)
    return int(value) if value.is_integer() else value


def write_calls(message: Message) -> str:
    """Return the text of an assistant message that the gateway did not sample, with its calls written out."""
    lines = [message.content] if message.content else []
    return "\n".join([*lines, *(_write_call(call) for call in message.tool_calls)])


def _write_call(call: ToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments or "{}"}}}\n</tool_call>'


def reply_message(content: str, calls: Sequence[ToolCall], call: str) -> Message:
    """Return the assistant message for the client. Its tool calls have ids that are unique in the episode."""
    named = tuple(replace(tool_call, call_id=f"call_{call}_{number}") for number, tool_call in enumerate(calls))
    return Message(role="assistant", parts=text_parts(content), tool_calls=named)
