"""Search index: lexical and dense retrieval over stored passages, fused in hybrid mode."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from turnwise.core.errors import UserError
from turnwise.tools.search.lexical import LexicalIndex, RankedPassages
from turnwise.tools.search.storage import MANIFEST, DenseSettings, StoredPassages, damaged_index, read_manifest
from turnwise.tools.search.types import Mode, Passage, Searcher, SearchResult

MIN_FUSED = 50
"""Minimum length of the rankings that a hybrid search fuses."""
RANK_OFFSET = 60
"""Constant k of reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009)."""


class Retriever(Protocol):
    def retrieve(self, queries: Sequence[str], top: int) -> list[RankedPassages]: ...


class SearchIndex:
    def __init__(self, passages: Sequence[Passage], retrievers: Sequence[Retriever]) -> None:
        """The rankings of several retrievers are fused."""
        self.passages, self._retrievers = passages, retrievers

    def search(self, queries: Sequence[str], top: int) -> list[list[SearchResult]]:
        """The best passages for each query, best first. An empty query finds nothing."""
        distinct = list(dict.fromkeys(query for query in queries if query.strip()))
        rankings = dict(zip(distinct, self._rank(distinct, top), strict=True))
        return [
            [SearchResult(passage=self.passages[number], score=score) for number, score in rankings.get(query, [])]
            for query in queries
        ]

    def _rank(self, queries: list[str], top: int) -> list[RankedPassages]:
        if not queries:
            return []
        if len(self._retrievers) == 1:
            return self._retrievers[0].retrieve(queries, top)
        by_retriever = [retriever.retrieve(queries, max(top, MIN_FUSED)) for retriever in self._retrievers]
        return [fuse_rankings(rankings, top) for rankings in zip(*by_retriever, strict=True)]


def fuse_rankings(rankings: Sequence[RankedPassages], top: int) -> RankedPassages:
    """Reciprocal rank fusion: sum 1 / (60 + rank) over the rankings. Ties go to the earlier passage."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (passage, _) in enumerate(ranking, start=1):
            scores[passage] = scores.get(passage, 0.0) + 1 / (RANK_OFFSET + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:top]


def index_in_memory(passages: Sequence[Passage]) -> SearchIndex:
    """Build a lexical index that is not stored."""
    return SearchIndex(passages, [LexicalIndex.build(passage.lexical_text for passage in passages)])


def open_index(folder: Path, mode: Mode | None = None) -> SearchIndex:
    """Open an index written by `build_index`. Default mode: hybrid if it has vectors, else lexical."""
    manifest = read_manifest(folder)
    mode = mode or ("hybrid" if manifest.dense else "lexical")
    if mode != "lexical" and manifest.dense is None:
        raise UserError(
            f"{folder} has no vectors for mode {mode}: build it again with a dense model, or choose lexical."
        )
    try:
        passages = StoredPassages(folder)
        if len(passages) != manifest.passages:
            raise ValueError(f"it has {len(passages)} passages, not {manifest.passages}")
        retrievers: list[Retriever] = []
        if mode != "dense":
            retrievers.append(LexicalIndex.load(folder, manifest.passages))
        if mode != "lexical" and manifest.dense is not None:
            retrievers.append(_load_dense(folder, manifest.passages, manifest.dense))
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise damaged_index(folder, " ".join(str(error).split())[:120]) from error
    return SearchIndex(passages, retrievers)


def open_cached_index(folder: Path, mode: Mode | None) -> Searcher:
    """Open an index once per process, however many tools search it. A rebuilt index is opened again."""
    read_manifest(folder)
    return _open_cached(folder.resolve(), mode, (folder / MANIFEST).stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _open_cached(folder: Path, mode: Mode | None, modified_ns: int) -> Searcher:
    return open_index(folder, mode)


def _load_dense(folder: Path, passages: int, settings: DenseSettings) -> Retriever:
    from turnwise.tools.search.dense import DenseIndex, Encoder

    return DenseIndex.load(folder, passages, Encoder(settings.model), settings.query_prefix)
