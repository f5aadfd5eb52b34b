"""Read conversations to imitate from a JSONL, JSON or CSV file, in the columns of OpenAI, TRL and ShareGPT:

    messages            [{"role": "user", "content": "..."}, {"role": "assistant", "content": "...", "tool_calls": []}]
    prompt, completion  two texts, or two lists of such messages; only the completion is trained
    conversations       [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}], and perhaps `system`

A column `tools` lists the tools, as in an OpenAI request; it may be JSON text. The content of a message, except of the
assistant's, may be a list of parts with images, {"type": "image_url", "image_url": {"url": "..."}}. The URL is a data
URL, or the path of a file in the folder of the conversations.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError, read_failure
from turnwise.core.messages import (
    ContentPart,
    Exchange,
    ImagePart,
    Message,
    Role,
    ToolCall,
    ToolSpec,
    content_parts,
    system,
)
from turnwise.files.table_files import READERS
from turnwise.pictures.image import Image

EXPECTED = "Expected messages, prompt and completion, or conversations (ShareGPT)"
FORMATS = (("messages",), ("prompt", "completion"), ("conversations",))
"""Columns of the formats. A row has those of one of them."""
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


def read_conversations(file: Path) -> Iterator[list[Exchange]]:
    """Read one conversation per row."""
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise UserError(f"{file} is not a file of conversations. Give one that ends in {', '.join(READERS)}.")
    try:
        for where, row in reader(file):
            yield parse_conversation(row, where, file.parent)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{read_failure(file, error)}. Give a file of conversations.") from error


def parse_conversation(row: Any, where: str, folder: Path) -> list[Exchange]:
    """Return the exchanges of a row. `where` names it in errors; paths of images begin in `folder`."""
    columns = _columns(row, where)
    if columns == ("prompt", "completion"):
        context, answers = _prompt_and_completion(row, where, folder)
    else:
        context, answers = [], _messages(row[columns[0]], where, folder)
    opening = row.get("system") if columns == ("conversations",) else None
    if isinstance(opening, str) and opening:
        answers = [(system(opening), True), *answers]
    turns = [*((message, False) for message, _ in context), *answers]
    exchanges = _exchanges(turns, where)
    return [replace(exchanges[0], tools=_tools(row.get("tools"), where)), *exchanges[1:]]


def _columns(row: Any, where: str) -> tuple[str, ...]:
    """Return the format's columns. Raise UserError if the row has none of the formats, or more than one."""
    if not isinstance(row, Mapping):
        raise UserError(f"{where} is not an object with columns. {EXPECTED}.")
    present = [columns for columns in FORMATS if any(row.get(name) is not None for name in columns)]
    if not present:
        raise UserError(f"{where} has only the columns {', '.join(map(str, row)) or 'of nothing'}. {EXPECTED}.")
    if len(present) > 1:
        both = " and ".join(columns[0] for columns in present)
        raise UserError(f"{where} has {both}, so it is unclear what to train on. Keep one of them.")
    if missing := [name for name in present[0] if row.get(name) is None]:
        raise UserError(f"{where} has no {missing[0]}. Add it, or use messages.")
    return present[0]


Turns = list[tuple[Message, bool]]
"""Messages, and whether they are trained if they are an assistant's."""


def _prompt_and_completion(row: Mapping[str, Any], where: str, folder: Path) -> tuple[Turns, Turns]:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        texts = ({"role": "user", "content": prompt}, {"role": "assistant", "content": completion})
        return _messages([texts[0]], where, folder), _messages([texts[1]], where, folder)
    if isinstance(prompt, list) and isinstance(completion, list):
        return _messages(prompt, where, folder), _messages(completion, where, folder)
    raise UserError(f"{where}: prompt and completion must both be texts, or both be lists of messages.")


def _messages(rows: Any, where: str, folder: Path) -> Turns:
    if not isinstance(rows, list) or not rows:
        raise UserError(f'{where}: expected a list of messages such as {{"role": "user", "content": "..."}}.')
    return [_message(row, f"{where}, message {number}", folder) for number, row in enumerate(rows, start=1)]


def _message(row: Any, where: str, folder: Path) -> tuple[Message, bool]:
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
    parts = () if name == "function_call" or (value is None and calls) else _parts(value, where, folder)
    if calls and role != "assistant":
        raise UserError(f"{where} has calls, and its role is {name}. Only an assistant calls tools.")
    message = Message(role=role, parts=parts, tool_calls=calls, call_id=str(row.get("tool_call_id") or ""))
    if message.images and role == "assistant":
        raise UserError(f"{where} has an image, and an assistant writes text only. Move it into a message before.")
    return message, row.get("weight") != 0


def _parts(value: Any, where: str, folder: Path) -> tuple[ContentPart, ...]:
    """Return the parts of a content: a text, or a list of texts and images as in an OpenAI request."""
    if isinstance(value, str):
        return content_parts(value)
    if not isinstance(value, list):
        raise UserError(f"{where} has no content. Write a text, or a list of texts and images.")
    parts = list[str | ImagePart]()
    for part in value:
        item = _part(part, where, folder)
        if isinstance(item, str) and parts and isinstance(parts[-1], str):
            parts[-1] += item  # texts that follow each other are one, as in a content that is a text
        else:
            parts.append(item)
    return content_parts(parts)


def _part(part: Any, where: str, folder: Path) -> str | ImagePart:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return part["text"]
    image = part.get("image_url") if kind == "image_url" else None
    url = image.get("url") if isinstance(image, Mapping) else image
    if not isinstance(url, str):
        raise UserError(
            f'{where} has a part of type {kind!r}. Write {{"type": "text", "text": ...}} or '
            '{"type": "image_url", "image_url": {"url": ...}}.'
        )
    try:
        return Image(_read_image(url, folder))
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _read_image(url: str, folder: Path) -> bytes:
    """Return the bytes of a data URL, or of a file in the folder."""
    if url.startswith("data:"):
        head, _, data = url.partition(",")
        try:
            return base64.b64decode(data if head.endswith(";base64") else "?", validate=True)
        except (binascii.Error, ValueError):
            raise UserError("An image is not a data URL with base64. Write data:image/png;base64,...") from None
    if "://" in url:
        raise UserError(f"The image {url[:80]} is not fetched. Save it beside the file and write its path.")
    try:
        is_inside = (folder / url).resolve().is_relative_to(folder.resolve())
    except (ValueError, RuntimeError):  # no path at all, or a loop of links
        is_inside = False
    if not is_inside:
        raise UserError(f"The image {url[:80]!r} is not in {folder}. Move it there and write its path.")
    try:
        return (folder / url).read_bytes()
    except OSError as error:
        raise UserError(f"The image {read_failure(folder / url, error)}. Write a path relative to {folder}.") from error


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


def _tools(rows: Any, where: str) -> tuple[ToolSpec, ...]:
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


def _exchanges(turns: Turns, where: str) -> list[Exchange]:
    exchanges, shown = list[Exchange](), list[Message]()
    for message, trained in turns:
        if message.role != "assistant":
            shown.append(_with_call_id(message, exchanges, shown))
            continue
        if not shown:
            raise UserError(f"{where}: an assistant message has no message before it to answer. Add one, or remove it.")
        exchanges.append(
            Exchange(messages=tuple(shown), answer=message.content, calls=message.tool_calls, trained=trained)
        )
        shown = []
    if not any(exchange.trained for exchange in exchanges):
        raise UserError(f"{where} has no assistant message to train on, so there is nothing to imitate. Remove it.")
    return exchanges


def _with_call_id(message: Message, exchanges: Sequence[Exchange], shown: Sequence[Message]) -> Message:
    """Give a tool message without an id that of the call that it answers: the first one, the second one, ..."""
    position = sum(message.role == "tool" for message in shown)
    calls = exchanges[-1].calls if exchanges else ()
    if message.role != "tool" or message.call_id or position >= len(calls):
        return message
    return replace(message, call_id=calls[position].call_id)
