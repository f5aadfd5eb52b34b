"""Passages, search results and the limits of a search. Light to import: no numpy, no torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Mode = Literal["lexical", "dense", "hybrid"]

MAX_QUERY_CHARS = 2000
MAX_RESULTS = 50
"""Per query."""
MAX_QUERIES = 1024
"""Per request."""
MAX_REQUEST_BYTES = 4 << 20
MAX_REPLY_BYTES = 256 << 20
"""More than any reply with the maximum of results and passages of the usual length."""
MAX_TITLE_CHARS = 200
PASSAGE_CHARS = 800
"""Default maximum length of a passage."""
KEY_VARIABLE = "TURNWISE_SEARCH_KEY"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters without meaning in a text, or with a special one for terminals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Piece of a document, short enough to be shown to a model."""

    title: str
    text: str
    id: str = ""
    """Identifier in the source: a row's `id`, or file name and number."""

    @property
    def full_text(self) -> str:
        return f"{self.title}\n{self.text}"

    @property
    def lexical_text(self) -> str:
        """Text for lexical retrieval. The title counts twice, since it names the topic."""
        return f"{self.title}\n{self.full_text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    passage: Passage
    score: float
    """Higher is better; comparable within one search only."""


class Searcher(Protocol):
    """Answers many queries per call, from any thread: an index, or a client of a search server."""

    def search(self, queries: Sequence[str], top: int) -> list[list[SearchResult]]: ...


class SearchFailed(Exception):
    """The searcher failed, not one query: all queries of the call fail."""


def clean_text(text: str) -> str:
    """Replace control characters by spaces and unpaired surrogates by question marks."""
    return CONTROL.sub(" ", text).encode("utf-8", "replace").decode("utf-8")
