"""Demonstrations: conversations to imitate, as samples.

Their answers were written by a solver or a person, not sampled. This is the only place where trained text is encoded;
episodes of a run keep the ids that were sampled (`samples.build_samples`).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from turnwise.core.errors import UserError, read_failure
from turnwise.core.messages import Message, Role, ToolSpec, text_parts
from turnwise.core.samples import Sample
from turnwise.core.trajectory import Stop
from turnwise.render.renderer import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One turn: the messages before the answer, and the answer."""

    messages: tuple[Message, ...]
    answer: str
    tools: tuple[ToolSpec, ...] = ()
    """Tools of the first turn, as in `Observation`."""
    tools_in_words: str = ""


def build_demonstration(number: int, exchanges: Sequence[Exchange], renderer: Renderer) -> Sample:
    """Encode a conversation as one sample; the mask is 1 on the answers and their end tokens."""
    ids: list[int] = []
    turn_ids: list[int] = []
    for turn, exchange in enumerate(exchanges):
        if turn:
            context = renderer.extend(exchange.messages, Stop.EOS)
        else:
            context = renderer.start(exchange.messages, exchange.tools, exchange.tools_in_words)
        answer = renderer.answer(exchange.answer)
        ids += [*context, *answer]
        turn_ids += [-1] * len(context) + [turn] * len(answer)
    turns = torch.tensor(turn_ids)
    return Sample(
        trajectory=number,
        ids=torch.tensor(ids),
        mask=turns >= 0,
        turn_ids=turns,
        logprobs=torch.zeros(len(ids)),
        temperatures=torch.ones(len(ids)),
    )


def read_conversations(file: Path) -> Iterator[list[Exchange]]:
    """Read a JSONL file with one conversation per line: `{"messages": [{"role": ..., "content": ...}, ...]}`."""
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _exchanges(line, f"{file} line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{read_failure(file, error)}. Give a JSONL file of conversations.") from error


def _exchanges(line: str, where: str) -> list[Exchange]:
    try:
        messages = [_message(row, where) for row in json.loads(line)["messages"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f'{where} is not a conversation. Expected {{"messages": [{{"role": ..., "content": ...}}]}}.'
        ) from error
    exchanges, shown = list[Exchange](), list[Message]()
    for message in messages:
        if message.role != "assistant":
            shown.append(message)
            continue
        if not shown:
            raise UserError(f"{where}: an assistant message has no message before it to answer.")
        exchanges.append(Exchange(messages=tuple(shown), answer=message.content))
        shown = []
    if not exchanges:
        raise UserError(f"{where} has no assistant message, so there is nothing to imitate.")
    return exchanges


def _message(row: Any, where: str) -> Message:
    role, content = row["role"], row["content"]
    if role not in get_args(Role) or not isinstance(content, str) or row.get("tool_calls"):
        raise UserError(
            f"{where}: a message needs a role ({', '.join(get_args(Role))}) and text content, and no tool calls."
        )
    return Message(role=role, parts=text_parts(content))
