"""Read chat messages, images and tools from the columns of a row, in the formats of OpenAI, TRL and ShareGPT.

    messages  [{"role": "user", "content": "..."}, {"from": "human", "value": "..."}]
    images    files, data URLs, or {"bytes": ..., "path": ...} as `datasets` stores them
    tools     [{"type": "function", "function": {"name": "...", "parameters": {}}}], which may be JSON text

The content of a message, except of the assistant's, may be a list of parts: {"type": "text", "text": "..."},
{"type": "image_url", "image_url": {"url": "..."}}, or {"type": "image"} for the next one of `images`. If no part stands
for an image, the images come first in the first message of the user, as in TRL. A URL is a data URL, or the path of a
file in the folder of the rows.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError, read_failure
from turnwise.core.messages import ContentPart, ImagePart, Message, Role, ToolCall, ToolSpec, append_part, content_parts
from turnwise.pictures.image import Image
from turnwise.text.truncation import describe_value

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
}
"""Names of OpenAI and ShareGPT -> role."""
UNREAD = ImagePart(data=b"")
"""Stands for an image that is not read."""
Turns = list[tuple[Message, bool]]
"""Messages, and whether they are trained if they are an assistant's."""


class RowImages:
    """The images of a row: those of its column `images`, in order, and those that messages name.

    Paths begin in `folder`. With `read` False no image is read, and each is empty: enough to check the messages.
    """

    def __init__(self, column: Any, where: str, folder: Path, *, read: bool = True) -> None:
        column = [] if column is None else column
        if not isinstance(column, list):
            column = [column]
        self._where, self._folder, self._reads, self._taken = where, folder, read, 0
        self._sources: list[Any] = column

    def read(self, source: Any) -> ImagePart:
        """Read an image: a data URL, a file in the folder, or a table with `bytes` or `path`."""
        if isinstance(source, Mapping) and isinstance(source.get("bytes"), bytes):
            data = source["bytes"]
        else:
            name = source.get("path") if isinstance(source, Mapping) else source
            if not isinstance(name, str):
                raise UserError(f"An image is {describe_value(source)}. Write a path, or a data URL.")
            if not self._reads:
                return UNREAD
            data = _decode_data_url(name) if name.startswith("data:") else _read_file(name, self._folder)
        return Image(data) if self._reads else UNREAD

    def take(self) -> ImagePart:
        """Return the next image of the column."""
        if self._taken == len(self._sources):
            raise UserError(f"There are more parts of type image than the {self._taken} in the column images.")
        self._taken += 1
        return self.read(self._sources[self._taken - 1])

    def place_rest(self, turns: Turns) -> Turns:
        """Show the column's images at the start of the first message of the user if no message has a part for them."""
        left = len(self._sources) - self._taken
        if not left:
            return turns
        if self._taken:
            raise UserError(
                f"{self._where} has {len(self._sources)} images and {self._taken} parts of type image. Give each one."
            )
        position = next((number for number, (message, _) in enumerate(turns) if message.role == "user"), None)
        if position is None:
            raise UserError(f"{self._where} has images and no message of the user to show them in. Add one.")
        message, trained = turns[position]
        try:
            parts = (*(self.take() for _ in range(left)), *message.parts)
        except UserError as error:
            raise UserError(f"{self._where}: {error}") from error
        return [*turns[:position], (replace(message, parts=parts), trained), *turns[position + 1 :]]


def parse_messages(rows: Any, where: str, images: RowImages) -> Turns:
    """Return the messages of a column. `where` names the row in errors."""
    if not isinstance(rows, list) or not rows:
        raise UserError(f'{where}: expected a list of messages such as {{"role": "user", "content": "..."}}.')
    return [_message(row, f"{where}, message {number}", images) for number, row in enumerate(rows, start=1)]


def _message(row: Any, where: str, images: RowImages) -> tuple[Message, bool]:
    """Return the message, and whether its OpenAI `weight` lets it be trained."""
    names = ("from", "value") if isinstance(row, Mapping) and "from" in row else ("role", "content")
    if not isinstance(row, Mapping) or names[0] not in row:
        raise UserError(f"{where} has no role. Write role and content, or from and value (ShareGPT).")
    name, value = row[names[0]], row.get(names[1])
    role = ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise UserError(f"{where} has the role {name!r}. Use one of {', '.join(ROLES)}.")
    for lost, fix in (("reasoning_content", "Put it into content, in <think>"), ("function_call", "Use tool_calls")):
        if row.get(lost):
            raise UserError(f"{where} has {lost}, which would be lost. {fix}.")
    calls = _calls(value if name == "function_call" else row.get("tool_calls"), where)
    parts = () if name == "function_call" or (value is None and calls) else _parts(value, where, images)
    if calls and role != "assistant":
        raise UserError(f"{where} has calls, and its role is {name}. Only an assistant calls tools.")
    message = Message(role=role, parts=parts, tool_calls=calls, call_id=str(row.get("tool_call_id") or ""))
    if message.images and role == "assistant":
        raise UserError(f"{where} has an image, and an assistant writes text only. Move it into a message before.")
    return message, row.get("weight") != 0


def _parts(value: Any, where: str, images: RowImages) -> tuple[ContentPart, ...]:
    """Return the parts of a content: a text, or a list of texts and images as in an OpenAI request."""
    if isinstance(value, str):
        return content_parts(value)
    if not isinstance(value, list):
        raise UserError(f"{where} has no content. Write a text, or a list of texts and images.")
    parts = list[str | ImagePart]()
    for part in value:
        append_part(parts, _part(part, where, images))
    return content_parts(parts)


def _part(part: Any, where: str, images: RowImages) -> str | ImagePart:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return part["text"]
    try:
        if kind == "image" and part.get("image") is None:
            return images.take()
        if kind == "image":
            return images.read(part["image"])
        image = part.get("image_url") if kind == "image_url" else None
        url = image.get("url") if isinstance(image, Mapping) else image
        if isinstance(url, str):
            return images.read(url)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    raise UserError(
        f'{where} has a part of type {kind!r}. Write {{"type": "text", "text": ...}} or '
        '{"type": "image_url", "image_url": {"url": ...}}.'
    )


def _decode_data_url(url: str) -> bytes:
    head, _, data = url.partition(",")
    try:
        return base64.b64decode(data if head.endswith(";base64") else "?", validate=True)
    except (binascii.Error, ValueError):
        raise UserError("An image is not a data URL with base64. Write data:image/png;base64,...") from None


def _read_file(name: str, folder: Path) -> bytes:
    if "://" in name:
        raise UserError(f"The image {name[:80]} is not fetched. Save it beside the file and write its path.")
    try:
        is_inside = (folder / name).resolve().is_relative_to(folder.resolve())
    except (ValueError, RuntimeError):  # no path at all, or a loop of links
        is_inside = False
    if not is_inside:
        raise UserError(f"The image {name[:80]!r} is not in {folder}. Move it there and write its path.")
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise UserError(
            f"The image {read_failure(folder / name, error)}. Write a path relative to {folder}."
        ) from error


def _calls(rows: Any, where: str) -> tuple[ToolCall, ...]:
    """Return the calls in OpenAI's `tool_calls`, or in the JSON text of ShareGPT's function_call."""
    rows = _parse_if_text(rows)
    rows = [rows] if isinstance(rows, Mapping) else rows or []
    if not isinstance(rows, list):
        raise UserError(f'{where} has calls that are not JSON. Write {{"name": ..., "arguments": {{...}}}}.')
    return tuple(_call(row, number, where) for number, row in enumerate(rows))


def _call(row: Any, number: int, where: str) -> ToolCall:
    function = row.get("function", row) if isinstance(row, Mapping) else None
    given = function.get("arguments") if isinstance(function, Mapping) else None
    arguments = _parse_if_text(given if given not in (None, "") else {})
    if not (isinstance(function, Mapping) and isinstance(function.get("name"), str) and isinstance(arguments, Mapping)):
        raise UserError(f"{where}: a call needs a name and arguments that are a JSON object.")
    text = given if isinstance(given, str) and given else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(name=function["name"], arguments=text, call_id=str(row.get("id") or f"call{number:05d}"))


def parse_tools(rows: Any, where: str) -> tuple[ToolSpec, ...]:
    """Return the tools of a column `tools`."""
    rows = _parse_if_text(rows) or []
    if not isinstance(rows, list):
        raise UserError(f"{where}: tools must be a list of functions, or its JSON text.")
    return tuple(_tool(row, where) for row in rows)


def _tool(row: Any, where: str) -> ToolSpec:
    function = row.get("function", row) if isinstance(row, Mapping) else None
    if not (isinstance(function, Mapping) and isinstance(function.get("name"), str)):
        raise UserError(f"{where}: a tool needs a name, a description and parameters (a JSON schema).")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise UserError(f"{where}: the parameters of the tool {function['name']} must be a JSON schema.")
    return ToolSpec(name=function["name"], description=str(function.get("description") or ""), parameters=parameters)


def _parse_if_text(value: Any) -> Any:
    """Return the JSON value of a text; a text that is not JSON unchanged."""
    if not isinstance(value, str) or not value.strip():
        return None if isinstance(value, str) else value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
