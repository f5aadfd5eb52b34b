"""Truncate long texts: at their end for people, in the middle for models, as start and end usually matter most."""

import codecs
import re

MAX_SHOWN = 60
"""Characters of a value or an answer that an error quotes."""
CUT_NOTE = re.compile(r"\n\.\.\. \[(\d{1,15}) characters cut\] \.\.\.\n")
"""Note left by an earlier truncation: tools truncate by their own limit, environments again by theirs."""


def shorten(text: str, limit: int) -> str:
    """Return at most `limit` characters, ending with "..." if something was cut."""
    return text if len(text) <= limit else f"{text[: max(0, limit - 3)]}..."


def describe_value(value: object) -> str:
    """Describe what a user's function returned, in a few words for an error."""
    try:
        text = repr(value)
    except Exception:  # any __repr__; an int of 5000 digits has none
        return f"a value of type {type(value).__name__}"
    text = shorten(text, MAX_SHOWN)
    return f"the text {text}" if isinstance(value, str) else text


def one_line(text: str) -> str:
    """Return the words with single spaces between them."""
    return " ".join(text.split())


def first_line(text: object, limit: int = 300) -> str:
    """Return the first line that is not blank, shortened. An error without a message is named by its type."""
    lines = (line.strip() for line in str(text).splitlines())
    return shorten(next(filter(None, lines), type(text).__name__ if isinstance(text, BaseException) else ""), limit)


def truncate_middle(text: str, limit: int) -> str:
    """Truncate to about `limit` characters and note how many were cut, including those of an earlier note it cuts."""
    if len(text) <= limit:
        return text
    begin = limit // 2
    end = len(text) - (limit - begin)
    notes = [note for note in CUT_NOTE.finditer(text) if note.end() > begin and note.start() < end]
    if notes:
        begin, end = min(begin, notes[0].start()), max(end, notes[-1].end())
    earlier = sum(int(note[1]) - len(note[0]) for note in notes)
    return _cut(text[:begin], end - begin + earlier, text[end:])


class OutputBuffer:
    """Collects a stream of bytes of any length: keeps its head and tail, counts the rest."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.head = bytearray()
        self.tail = bytearray()
        self.total = 0
        self.characters = 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self.characters += len(self.decoder.decode(data))
        space = self.keep - len(self.head)
        if space > 0:
            self.head += data[:space]
            data = data[space:]
        if data:
            self.tail += data
            if len(self.tail) > 2 * self.keep:
                del self.tail[: -self.keep]

    def text(self, limit: int) -> str:
        """Return the stream as text, truncated. `keep` must be at least 4 x `limit`: UTF-8 has up to 4 bytes each."""
        dropped = self.total - len(self.head) - len(self.tail)
        if not dropped:
            return truncate_middle(bytes(self.head + self.tail).decode("utf-8", "replace"), limit)
        head = self.head.decode("utf-8", "replace")[: limit // 2]
        tail = self.tail.decode("utf-8", "replace")[-(limit - limit // 2) :]
        unfinished = bool(self.decoder.getstate()[0])
        return _cut(head, self.characters + unfinished - len(head) - len(tail), tail)


def _cut(head: str, count: int, tail: str) -> str:
    return f"{head}\n... [{count} characters cut] ...\n{tail}"
