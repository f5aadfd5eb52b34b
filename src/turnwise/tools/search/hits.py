"""What a search gives, and what can be asked for one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from turnwise.tools.search.passages import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    passage: Passage
    score: float
    """Higher is better; comparable within one search only."""


class Searcher(Protocol):
    """What answers queries, many in one call, in any thread: an index, or a server with one."""

    def search(self, queries: Sequence[str], top: int) -> list[list[Hit]]: ...
