"""Read conversations to imitate from a JSONL, JSON, CSV or Parquet file, in the columns of OpenAI, TRL and ShareGPT:

    messages            [{"role": "user", "content": "..."}, {"role": "assistant", "content": "...", "tool_calls": []}]
    prompt, completion  two texts, or two lists of such messages; only the completion is trained
    conversations       [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}], and perhaps `system`

A column `tools` lists the tools and a column `images` the images: see `render/chat_rows.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError, read_failure
from turnwise.core.messages import Exchange, Message, system
from turnwise.files.table_files import READERS
from turnwise.render.chat_rows import RowImages, Turns, parse_messages, parse_tools

EXPECTED = "Expected messages, prompt and completion, or conversations (ShareGPT)"
FORMATS = (("messages",), ("prompt", "completion"), ("conversations",))
"""Columns of the formats. A row has those of one of them."""


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
    columns, images = _columns(row, where), RowImages(row.get("images"), where, folder)
    if columns == ("prompt", "completion"):
        context, answers = _prompt_and_completion(row, where, images)
    else:
        context, answers = [], parse_messages(row[columns[0]], where, images)
    opening = row.get("system") if columns == ("conversations",) else None
    if isinstance(opening, str) and opening:
        answers = [(system(opening), True), *answers]
    turns = images.place_rest([*((message, False) for message, _ in context), *answers])
    exchanges = _exchanges(turns, where)
    return [replace(exchanges[0], tools=parse_tools(row.get("tools"), where)), *exchanges[1:]]


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


def _prompt_and_completion(row: Mapping[str, Any], where: str, images: RowImages) -> tuple[Turns, Turns]:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        texts = ({"role": "user", "content": prompt}, {"role": "assistant", "content": completion})
        return parse_messages([texts[0]], where, images), parse_messages([texts[1]], where, images)
    if isinstance(prompt, list) and isinstance(completion, list):
        return parse_messages(prompt, where, images), parse_messages(completion, where, images)
    raise UserError(f"{where}: prompt and completion must both be texts, or both be lists of messages.")


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
