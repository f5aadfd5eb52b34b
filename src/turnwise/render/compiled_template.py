"""Scaffolding compiled to ids, so that a call encodes only what content changes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.core.messages import Message
from turnwise.render.codec import AddedToken, Codec
from turnwise.render.template import TemplatePart

Before = Literal["nothing", "control", "text"]
"""What stands before a text: the beginning of the context, a control token, or sampled text."""


@dataclass(frozen=True, slots=True)
class TextRun:
    """Text between two control tokens, scaffolding and content encoded together, as the tokenizer would on the whole
    text: only sampled ids and what is appended to them ever meet at a seam.
    """

    parts: tuple[TemplatePart, ...]
    spaced: bool
    lstrip: bool
    rstrip: bool

    def text(self, messages: Sequence[Message]) -> str:
        return self._stripped("".join([part if isinstance(part, str) else part.text(messages) for part in self.parts]))

    def _stripped(self, text: str) -> str:
        if self.lstrip:
            text = text.lstrip()
        return text.rstrip() if self.rstrip else text

    def cuts(self, messages: Sequence[Message], markup: re.Pattern[str]) -> list[int]:
        """Positions inside the words of `markup` that an environment or a tool wrote, if only a part of one, in the
        text as it is shown.
        """
        foreign: list[tuple[int, int]] = []
        whole = ""
        for part in self.parts:
            shown = part if isinstance(part, str) else part.text(messages)
            if not isinstance(part, str) and not part.trusted(messages):
                foreign.append((len(whole), len(whole) + len(shown)))
            whole += shown
        gone, length = len(whole) - len(whole.lstrip()) if self.lstrip else 0, len(self._stripped(whole))
        places = (
            match.start() + 1 - gone
            for match in overlapping_matches(markup, whole)
            if any(match.start() < end and begin < match.end() for begin, end in foreign)
        )
        return [place for place in places if 0 < place < length]


def overlapping_matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """From every place where there is one: also such as begin inside another."""
    found = pattern.search(text)
    while found is not None:
        yield found
        found = pattern.search(text, found.start() + 1)


Step = tuple[int, ...] | TextRun


class CompiledTemplate:
    """The ids of one shape of messages."""

    def __init__(self, codec: Codec, parts: Sequence[TemplatePart], before: Before, swallows: bool = False) -> None:
        """`swallows`: the control token before takes the whitespace after it."""
        self._codec = codec
        self._steps = _steps(codec, _runs(codec, parts, before, swallows))

    def ids(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for step in self._steps:
            ids.extend(step if isinstance(step, tuple) else self._encoded(step, messages))
        return ids

    def _encoded(self, run: TextRun, messages: Sequence[Message]) -> Sequence[int]:
        text = run.text(messages)
        if self._codec.markup_pattern.search(text) is None:
            return self._codec.encode(text, run.spaced)
        return self._codec.encode_cut(text, run.cuts(messages, self._codec.markup_pattern), run.spaced)


def _runs(codec: Codec, parts: Sequence[TemplatePart], before: Before, swallows: bool) -> list[AddedToken | TextRun]:
    """Splits scaffolding at its control tokens and gathers all between two of them into runs."""
    made: list[AddedToken | TextRun] = []
    gathered: list[TemplatePart] = []

    def close(rstrip: bool) -> None:
        if gathered:
            spaced = codec.prefix == "always" if before == "control" else codec.prefix != "never"
            made.append(TextRun(tuple(gathered), spaced and before != "text", swallows, rstrip))
            gathered.clear()

    for part in parts:
        pieces = split_at(codec.control_pattern, part) if isinstance(part, str) else [part]
        for piece in pieces:
            token = codec.control.get(piece) if isinstance(piece, str) else None
            if token is None:
                gathered.append(piece)
                continue
            close(token.lstrip)
            made.append(token)
            before, swallows = "control", token.rstrip
    close(rstrip=False)
    return made


def split_at(pattern: re.Pattern[str], text: str) -> list[str]:
    """`text` cut before and behind every match, without empty pieces."""
    return [piece for piece in re.split(f"({pattern.pattern})", text) if piece]


def _steps(codec: Codec, runs: Sequence[AddedToken | TextRun]) -> tuple[Step, ...]:
    """Encodes all that holds no content, and joins neighbours."""
    steps: list[Step] = []
    for run in runs:
        if isinstance(run, AddedToken):
            ids: tuple[int, ...] = (run.id,)
        elif all(isinstance(part, str) for part in run.parts):
            ids = codec.encode(run.text(()), run.spaced)
        else:
            steps.append(run)
            continue
        if steps and isinstance(steps[-1], tuple):
            steps[-1] += ids
        else:
            steps.append(ids)
    return tuple(steps)
