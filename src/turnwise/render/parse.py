"""Parse an action: its text, its tool calls, and which of its tokens think, answer or call.

A tool call is written `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Thinking may have sections:

<think> <observation> a b </observation> <reasoning> c </reasoning> <prediction> d </prediction> </think>
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from turnwise.core.messages import Message, ToolCall, text_parts
from turnwise.core.trajectory import Span

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_ARGUMENTS = ("arguments", "parameters")


def read_call(text: str, call_id: str) -> ToolCall | None:
    """Return the call in `text`, or None if there is none. Arguments stay as they were written. Never raises."""
    try:
        members = dict(_members(text))
        name = json.loads(members.get("name", "null"))
        raw = next((members[key] for key in _ARGUMENTS if key in members), "{}")
        arguments = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict | str):
        return None
    return ToolCall(name=name, arguments=arguments if isinstance(arguments, str) else raw, call_id=call_id)


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys of the JSON object in `text` with the source text of their values."""
    at = _expect(text, _skip(text, 0), "{")
    while True:
        key, at = _DECODER.raw_decode(text, at)
        if not isinstance(key, str):
            raise ValueError("a key must be a string")
        begin = _skip(text, _expect(text, _skip(text, at), ":"))
        _, end = _DECODER.raw_decode(text, begin)
        yield key, text[begin:end]
        at = _skip(text, end)
        if text[at : at + 1] == "}":
            break
        at = _expect(text, at, ",")
    if text[at + 1 :].strip():
        raise ValueError("unexpected text after the object")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, sign: str) -> int:
    """Return the position after `sign` and the whitespace that follows it."""
    if text[at : at + 1] != sign:
        raise ValueError(f"expected {sign}")
    return _skip(text, at + 1)


_TAG = re.compile(rb"<(/?)(think|answer|tool_call|call)>")
_SECTION_TAG = re.compile(rb"<(/?)(observation|reasoning|prediction)>")
_NAMES = {b"tool_call": "call"}
"""Names of spans that differ from their tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedAction:
    """An action: the message for the environment, and the token spans for the algorithms."""

    message: Message
    spans: tuple[Span, ...] = ()


class _TaggedBlock(NamedTuple):
    """Byte range between a pair of tags."""

    name: str
    begin: int
    end: int
    closed: bool


def parse_pieces(pieces: Sequence[bytes], opens_think: bool) -> ParsedAction:
    """Parse an action from the bytes of each of its tokens, without the end-of-turn token.

    Tags are matched in bytes: they are ASCII, so a token may end within a character. A span covers the tokens that
    contain inner text: a token that is only part of a tag is outside, a token that crosses the border is inside.
    `opens_think`: the prompt ended with an open `<think>`, so the action begins inside it.
    """
    data = b"".join(pieces)
    text = data.decode(errors="replace")
    if not opens_think and b"<" not in data:
        return ParsedAction(message=Message(role="assistant", parts=text_parts(text)))
    blocks = list(_blocks(data, _TAG, b"think" if opens_think else b""))
    message = Message(role="assistant", parts=text_parts(text), tool_calls=_calls(data, blocks))
    return ParsedAction(message=message, spans=_spans(pieces, [*blocks, *_sections(data)]))


def read_sections(text: str) -> list[tuple[str, str]]:
    """Return name and text of the sections of a reply, in order: the ones that have spans, also if they are empty."""
    data = text.encode(errors="replace")  # an unpaired surrogate
    return [(block.name, data[block.begin : block.end].decode()) for block in _sections(data)]


_THINK, _THINK_END = b"<think>", b"</think>"
_TEXT = re.compile(rb"\S")


def tokens_outside_thinking(pieces: Sequence[bytes], opens_think: bool) -> list[int] | None:
    """Return the indices of the tokens outside closed `<think>` blocks and the white space after them.

    None if a block is not closed, or if a token is partly inside. `opens_think`: the prompt ended with an open
    `<think>`; the tag that closes it is kept, so that it does not stay open. Takes linear time: models repeat tags.
    """
    data, blocks = b"".join(pieces), list[tuple[int, int]]()
    if _begins_inside_thinking(data):
        close = data.find(_THINK_END)
        blocks = [(0, close if opens_think else close + len(_THINK_END))]
    elif opens_think:
        return None
    begin = data.find(_THINK, blocks[0][1] if blocks else 0)
    while begin >= 0:
        close = data.find(_THINK_END, begin)
        if close < 0:
            return None
        blocks.append((begin, close + len(_THINK_END)))
        begin = data.find(_THINK, blocks[-1][1])
    edges, begins = [edge for block in blocks for edge in block], [begin for begin, _ in blocks]
    texts = [_TEXT.search(data, end) for _, end in blocks]
    hidden_until = [len(data) if text is None else text.start() for text in texts]
    kept, begin = [], 0
    for index, piece in enumerate(pieces):
        end = begin + len(piece)
        if bisect_right(edges, begin) < bisect_left(edges, end):
            return None
        before = bisect_left(begins, end)
        if not before or end > hidden_until[before - 1]:
            kept.append(index)
        begin = end
    return kept


def _begins_inside_thinking(data: bytes) -> bool:
    """Return whether the first `</think>` comes before any `<think>`."""
    close = data.find(_THINK_END)
    return close >= 0 and not 0 <= data.find(_THINK) < close


def _blocks(data: bytes, pattern: re.Pattern[bytes], open_tag: bytes = b"") -> Iterator[_TaggedBlock]:
    """Yield blocks from left to right, without nesting.

    A block extends to its closing tag, whatever is in between; a block that is never closed extends to the next
    opening tag or to the end. `open_tag`: name of a tag that was opened before the data.
    """
    tags = list(pattern.finditer(data))
    last_close = {tag[2]: tag.start() for tag in tags if tag[1]}
    begin = 0
    for tag in tags:
        closing, name = bool(tag[1]), tag[2]
        if closing and name == open_tag:
            yield _TaggedBlock(_name(open_tag), begin, tag.start(), closed=True)
            open_tag = b""
        elif not closing and (not open_tag or last_close.get(open_tag, -1) < begin):
            if open_tag:
                yield _TaggedBlock(_name(open_tag), begin, tag.start(), closed=False)
            open_tag, begin = name, tag.end()
    if open_tag:
        yield _TaggedBlock(_name(open_tag), begin, len(data), closed=False)


def _name(tag: bytes) -> str:
    return _NAMES.get(tag, tag.decode())


def _sections(data: bytes) -> Iterator[_TaggedBlock]:
    """Yield the closed sections inside closed thinking; a section inside another one is part of its text.

    Rewards read the same sections as token masks, so the text alone decides: an environment does not know whether the
    prompt opened the thinking.
    """
    for block in _blocks(data, _TAG, b"think" if _begins_inside_thinking(data) else b""):
        if block.name == "think" and block.closed:
            for section in _blocks(data[block.begin : block.end], _SECTION_TAG):
                if section.closed:
                    yield section._replace(begin=block.begin + section.begin, end=block.begin + section.end)


def _calls(data: bytes, blocks: Sequence[_TaggedBlock]) -> tuple[ToolCall, ...]:
    """Return the well-formed calls, numbered so that a tool message can refer to its call."""
    texts = [
        data[block.begin : block.end].decode(errors="replace")
        for block in blocks
        if block.name == "call" and block.closed
    ]
    calls = (read_call(text, call_id=f"call{number:05d}") for number, text in enumerate(texts))
    return tuple(call for call in calls if call is not None)


def _spans(pieces: Sequence[bytes], blocks: Sequence[_TaggedBlock]) -> tuple[Span, ...]:
    """Return the token ranges of the blocks with inner text."""
    ends = list(accumulate(map(len, pieces)))
    begins = [0, *ends[:-1]]
    return tuple(
        Span(name=block.name, start=bisect_right(ends, block.begin), end=bisect_left(begins, block.end))
        for block in blocks
        if block.begin < block.end
    )
