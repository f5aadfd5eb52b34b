"""An index: asks its lexical and dense parts and gives passages."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from turnwise.core.errors import UserError
from turnwise.tools.search.lexical import LexicalIndex, RankedPassages
from turnwise.tools.search.storage import (
    MANIFEST,
    DenseSettings,
    StoredPassages,
    damaged_index,
    read_manifest,
)
from turnwise.tools.search.types import Mode, Passage, Searcher, SearchResult

FUSED = 50
"""Places of each ranking that a hybrid search looks at, at least."""
RANK_OFFSET = 60
"""Of Cormack, Clarke and Buettcher, SIGIR 2009: how little a first place alone counts against two good ones."""


class Retriever(Protocol):
    def best(self, queries: Sequence[str], top: int) -> list[RankedPassages]: ...


class SearchIndex:
    def __init__(self, passages: Sequence[Passage], parts: Sequence[Retriever]) -> None:
        """`parts`: one ranks alone; several are fused."""
        self.passages, self._parts = passages, parts

    def search(self, queries: Sequence[str], top: int) -> list[list[SearchResult]]:
        """Of each query the best passages, best first. An empty query finds nothing."""
        asked = list(dict.fromkeys(query for query in queries if query.strip()))
        found = dict(zip(asked, self._ranked(asked, top), strict=True))
        return [
            [SearchResult(passage=self.passages[number], score=score) for number, score in found.get(query, [])]
            for query in queries
        ]

    def _ranked(self, queries: list[str], top: int) -> list[RankedPassages]:
        if not queries:
            return []
        if len(self._parts) == 1:
            return self._parts[0].best(queries, top)
        rankings = [part.best(queries, max(top, FUSED)) for part in self._parts]
        return [fuse_rankings(of_query, top) for of_query in zip(*rankings, strict=True)]


def fuse_rankings(rankings: Sequence[RankedPassages], top: int) -> RankedPassages:
    """Every place gives 1 / (60 + place); the sums rank anew, of equal ones the earlier passage first."""
    sums: dict[int, float] = {}
    for ranked in rankings:
        for place, (passage, _) in enumerate(ranked, start=1):
            sums[passage] = sums.get(passage, 0.0) + 1 / (RANK_OFFSET + place)
    return sorted(sums.items(), key=lambda each: (-each[1], each[0]))[:top]


def index_in_memory(passages: Sequence[Passage]) -> SearchIndex:
    """A lexical index of passages at hand, kept nowhere."""
    return SearchIndex(passages, [LexicalIndex.build(passage.lexical_text for passage in passages)])


def open_index(folder: Path, mode: Mode | None = None) -> SearchIndex:
    """An index that `build_index` wrote. `mode`: left out, hybrid where it has vectors, else lexical."""
    manifest = read_manifest(folder)
    mode = mode or ("hybrid" if manifest.dense else "lexical")
    if mode != "lexical" and manifest.dense is None:
        raise UserError(f"{folder} has no vectors for mode {mode}: build it with --dense MODEL, or choose lexical")
    try:
        passages = StoredPassages(folder)
        if len(passages) != manifest.passages:
            raise ValueError(f"it holds {len(passages)} passages, not {manifest.passages}")
        parts: list[Retriever] = []
        if mode != "dense":
            parts.append(LexicalIndex.load(folder, manifest.passages))
        if mode != "lexical" and manifest.dense is not None:
            parts.append(_dense(folder, manifest.passages, manifest.dense))
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise damaged_index(folder, " ".join(str(error).split())[:120]) from error
    return SearchIndex(passages, parts)


def open_cached_index(folder: Path, mode: Mode | None) -> Searcher:
    """Once a process, however many tools search it; one that was built anew is another."""
    read_manifest(folder)
    return _opened(folder.resolve(), mode, (folder / MANIFEST).stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _opened(folder: Path, mode: Mode | None, written: int) -> Searcher:
    return open_index(folder, mode)


def _dense(folder: Path, passages: int, settings: DenseSettings) -> Retriever:
    from turnwise.tools.search.dense import DenseIndex, Encoder

    return DenseIndex.load(folder, passages, Encoder(settings.model), settings.query_prefix)
