"""Scaffolding compiled to ids, so that rendering encodes only the text around content."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.core.messages import Message
from turnwise.render.codec import AddedToken, Codec
from turnwise.render.slots import ImageSlot, TemplatePart, TemplateSlot

Before = Literal["nothing", "control", "text"]
"""Predecessor of a text: the start of the context, a control token, or sampled text."""


@dataclass(frozen=True, slots=True)
class TextRun:
    """Text between two control tokens. Scaffolding and content are encoded together, as in the whole text, so only
    sampled ids and ids appended to them are encoded separately.
    """

    parts: tuple[str | TemplateSlot, ...]
    spaced: bool
    lstrip: bool
    rstrip: bool

    def text(self, messages: Sequence[Message]) -> str:
        return self._strip("".join([part if isinstance(part, str) else part.text(messages) for part in self.parts]))

    def _strip(self, text: str) -> str:
        if self.lstrip:
            text = text.lstrip()
        return text.rstrip() if self.rstrip else text

    def cuts(self, messages: Sequence[Message], markup: re.Pattern[str]) -> list[int]:
        """Return positions that split matches of `markup` to which untrusted text contributes, in the shown text."""
        untrusted: list[tuple[int, int]] = []
        texts: list[str] = []
        begin = 0
        for part in self.parts:
            shown = part if isinstance(part, str) else part.text(messages)
            if not isinstance(part, str) and not part.trusted(messages):
                untrusted.append((begin, begin + len(shown)))
            texts.append(shown)
            begin += len(shown)
        whole = "".join(texts)
        stripped, length = len(whole) - len(whole.lstrip()) if self.lstrip else 0, len(self._strip(whole))
        ends = [end for _, end in untrusted]
        positions = []
        for match in overlapping_matches(markup, whole):
            following = bisect_right(ends, match.start())  # the first untrusted text that does not end before the match
            if following < len(ends) and untrusted[following][0] < match.end():
                positions.append(match.start() + 1 - stripped)
        return [position for position in positions if 0 < position < length]


def overlapping_matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield all matches, also those that begin inside another."""
    match = pattern.search(text)
    while match is not None:
        yield match
        match = pattern.search(text, match.start() + 1)


Step = tuple[int, ...] | TextRun | ImageSlot

EncodeImage = Callable[[bytes], Sequence[int]]
"""Encoded image -> its ids."""


class CompiledTemplate:
    """Encoder for messages of one shape."""

    def __init__(
        self,
        codec: Codec,
        parts: Sequence[TemplatePart],
        before: Before,
        swallows: bool = False,
        encode_image: EncodeImage | None = None,
    ) -> None:
        """`swallows`: the control token before consumes the whitespace after it."""
        self._codec, self._encode_image = codec, encode_image
        self._steps = _steps(codec, _runs(codec, parts, before, swallows))

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, about."""
        return sum(40 * len(step) if isinstance(step, tuple) else 400 for step in self._steps)

    def ids(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for step in self._steps:
            if isinstance(step, tuple):
                ids.extend(step)
            elif isinstance(step, TextRun):
                ids.extend(self._encode(step, messages))
            elif self._encode_image is not None:
                ids.extend(self._encode_image(step.data(messages)))
        return ids

    def _encode(self, run: TextRun, messages: Sequence[Message]) -> Sequence[int]:
        text = run.text(messages)
        if self._codec.markup_pattern.search(text) is None:
            return self._codec.encode(text, run.spaced)
        return self._codec.encode_cut(text, run.cuts(messages, self._codec.markup_pattern), run.spaced)


Run = AddedToken | TextRun | ImageSlot


def _runs(codec: Codec, parts: Sequence[TemplatePart], before: Before, swallows: bool) -> list[Run]:
    """Split scaffolding at its control tokens and at images, and gather what is between them into runs."""
    runs: list[Run] = []
    gathered: list[str | TemplateSlot] = []

    def close(rstrip: bool) -> None:
        if gathered:
            spaced = codec.prefix == "always" if before == "control" else codec.prefix != "never"
            runs.append(TextRun(tuple(gathered), spaced and before != "text", swallows, rstrip))
            gathered.clear()

    for part in parts:
        if isinstance(part, ImageSlot):
            close(rstrip=False)
            runs.append(part)
            before, swallows = "control", False
            continue
        pieces = split_at(codec.control_pattern, part) if isinstance(part, str) else [part]
        for piece in pieces:
            token = codec.control.get(piece) if isinstance(piece, str) else None
            if token is None:
                gathered.append(piece)
                continue
            close(token.lstrip)
            runs.append(token)
            before, swallows = "control", token.rstrip
    close(rstrip=False)
    return runs


def split_at(pattern: re.Pattern[str], text: str) -> list[str]:
    """Split `text` before and after every match, without empty pieces."""
    return [piece for piece in re.split(f"({pattern.pattern})", text) if piece]


def _steps(codec: Codec, runs: Sequence[Run]) -> tuple[Step, ...]:
    """Encode runs without content and join neighbours."""
    steps: list[Step] = []
    joined: list[int] = []

    def close() -> None:
        if joined:
            steps.append(tuple(joined))
            joined.clear()

    for run in runs:
        if isinstance(run, AddedToken):
            joined.append(run.id)
        elif isinstance(run, TextRun) and all(isinstance(part, str) for part in run.parts):
            joined.extend(codec.encode(run.text(()), run.spaced))
        else:
            close()
            steps.append(run)
    close()
    return tuple(steps)
