"""Observations as texts and messages: everything in them was written by the server, and is bounded and cleaned."""

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.core.errors import EnvironmentFailure
from turnwise.core.messages import ContentPart, Message, Role, TextPart
from turnwise.pictures.image import Image
from turnwise.text.truncation import describe_value, truncate_middle

HIDDEN = ("metadata", "actions", "messages")
"""Fields that are not part of the text: facts of the protocol."""
ROLES: tuple[Role, ...] = ("system", "user", "tool")
"""Roles of a server's messages. None may speak for the agent."""
CONTROL_CHARACTERS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
DATA_URL = re.compile(r"data:image/[a-z]+;base64,")


def describe_observation(observation: Mapping[str, Any], limit: int) -> str:
    """Return the text of an observation: the value of its only field, or a line per field."""
    shown = {
        name: value for name, value in observation.items() if name not in HIDDEN and value not in (None, "", [], {})
    }
    if len(shown) == 1:
        return clean(_text(*shown.values()), limit)
    return clean("\n".join(f"{name}: {_text(value)}" for name, value in shown.items()), limit)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def clean(text: str, limit: int) -> str:
    """Remove control characters and truncate."""
    return truncate_middle(CONTROL_CHARACTERS.sub("", text).strip(), limit)


def read_messages(observation: Mapping[str, Any], limit: int) -> tuple[Message, ...]:
    """Return the field `messages` if it is a list of chat messages; nothing otherwise."""
    messages = observation.get("messages")
    if not isinstance(messages, list) or not messages:
        return ()
    if not all(
        isinstance(message, dict) and message.get("role") in ROLES and "content" in message for message in messages
    ):
        return ()
    return tuple(
        Message(role=message["role"], parts=tuple(read_parts(message["content"], limit))) for message in messages
    )


def read_parts(content: Any, limit: int) -> Iterator[ContentPart]:
    """Yield the parts of a message in the format of chat completions, or of a tool's result in that of MCP."""
    for part in [content] if isinstance(content, str) else content if isinstance(content, list) else ():
        if isinstance(part, str):
            yield TextPart(text=clean(part, limit))
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            yield TextPart(text=clean(part["text"], limit))
        elif isinstance(part, dict) and part.get("type") == "image_url":
            yield _image(str(part.get("image_url", {}).get("url", "")))
        elif isinstance(part, dict) and part.get("type") == "image":
            yield _image(f"data:image/png;base64,{part.get('data', '')}")
        else:
            raise EnvironmentFailure(f"A part of a message is {describe_value(part)}: text or an image is needed.")


def _image(url: str) -> Image:
    head = DATA_URL.match(url)
    if head is None:
        raise EnvironmentFailure("An image of a message is not a data: URL: it must be in the message.")
    try:
        return Image(base64.b64decode(url[head.end() :], validate=True))
    except binascii.Error as error:
        raise EnvironmentFailure(f"An image of a message is not base64: {error}") from error
