"""Passages: pieces of documents, each short enough to be shown to a model, with the title of where it stands."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""What means nothing in a text, or something to a terminal: every one becomes a space."""
PARAGRAPH = re.compile(r"\n\s*\n")
ENDS = (". ", "! ", "? ", "\n", "; ", ", ", " ")
"""Where a long paragraph may be cut, the best places first."""
LONGEST_TITLE = 200
PASSAGE_CHARACTERS = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    title: str
    text: str
    id: str = ""
    """As its source names it: a row's `id`, or file and number."""

    @property
    def whole(self) -> str:
        return f"{self.title}\n{self.text}"

    @property
    def words(self) -> str:
        """What a search by words looks at: those of the title count twice, since it says what the passage is about."""
        return f"{self.title}\n{self.whole}"


def clean(text: str) -> str:
    """Plain text that any tokenizer takes: no control characters, no half of a surrogate pair."""
    return CONTROL.sub(" ", text).encode("utf-8", "replace").decode("utf-8")


def one_line(text: str) -> str:
    return " ".join(text.split())


def split_text(text: str, limit: int) -> Iterator[str]:
    """Whole paragraphs together as long as they fit in `limit` characters; a longer one is cut where a sentence ends.

    Nothing but white space at the seams is lost, and nothing stands twice.
    """
    held = ""
    for paragraph in filter(None, map(str.strip, PARAGRAPH.split(text))):
        if held and len(held) + 2 + len(paragraph) > limit:
            yield held
            held = ""
        *whole, rest = _cut(paragraph, limit)
        yield from whole
        held = f"{held}\n\n{rest}" if held else rest
    if held:
        yield held


def _cut(text: str, limit: int) -> list[str]:
    pieces, at = [], 0
    while len(text) - at > limit:
        end = _place(text, at, limit)
        if piece := text[at:end].strip():
            pieces.append(piece)
        at = end
    return [*pieces, text[at:].strip()]


def _place(text: str, at: int, limit: int) -> int:
    """Where the piece that begins at `at` ends: in its second half, so that no piece is tiny."""
    for end in ENDS:
        found = text.rfind(end, at + limit // 2, at + limit)
        if found >= 0:
            return found + len(end)
    return at + limit
