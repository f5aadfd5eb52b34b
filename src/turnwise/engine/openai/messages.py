"""Messages and tools as a chat endpoint takes them."""

import base64
from collections.abc import Sequence
from typing import Any

from turnwise.core.messages import Message, ToolSpec, tool_schema

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
    """Text as it is; with images a list of parts."""
    if not message.images:
        return message.content
    text = [{"type": "text", "text": message.content}] if message.content else []
    return [*text, *({"type": "image_url", "image_url": {"url": _data_url(image)}} for image in message.images)]


def _data_url(image: bytes) -> str:
    kind = next((kind for start, kind in IMAGE_TYPES.items() if image.startswith(start)), "image/png")
    return f"data:{kind};base64,{base64.b64encode(image).decode('ascii')}"
