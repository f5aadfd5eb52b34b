"""Passages: pieces of documents, each short enough to be shown to a model, with the title of where it stands."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""What means nothing in a text, or something to a terminal: every one becomes a space."""
MAX_TITLE_CHARS = 200
PASSAGE_CHARS = 800

Mode = Literal["lexical", "dense", "hybrid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    title: str
    text: str
    id: str = ""
    """As its source names it: a row's `id`, or file and number."""

    @property
    def full_text(self) -> str:
        return f"{self.title}\n{self.text}"

    @property
    def lexical_text(self) -> str:
        """What a search by words looks at: those of the title count twice, since it says what the passage is about."""
        return f"{self.title}\n{self.full_text}"


def clean_text(text: str) -> str:
    """Plain text that any tokenizer takes: no control characters, no half of a surrogate pair."""
    return CONTROL.sub(" ", text).encode("utf-8", "replace").decode("utf-8")


def one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    passage: Passage
    score: float
    """Higher is better; comparable within one search only."""


class Searcher(Protocol):
    """What answers queries, many in one call, in any thread: an index, or a server with one."""

    def search(self, queries: Sequence[str], top: int) -> list[list[SearchResult]]: ...


MAX_QUERY_CHARS = 2000
"""Characters."""
MAX_RESULTS = 50
"""Of one query."""
MAX_QUERIES = 1024
"""Of one request."""
MAX_REQUEST_BYTES = 4 << 20
MAX_REPLY_BYTES = 256 << 20
"""More than any reply of so many hits has with passages of the usual length."""
KEY_VARIABLE = "TURNWISE_SEARCH_KEY"
