"""An index: asks its lexical and dense parts and gives passages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from turnwise.core.errors import UserError
from turnwise.tools.search.fusion import fuse
from turnwise.tools.search.hits import Hit
from turnwise.tools.search.lexical import LexicalIndex, Ranked
from turnwise.tools.search.manifest import DenseSettings, Mode, damaged, read_manifest
from turnwise.tools.search.passages import Passage
from turnwise.tools.search.store import StoredPassages

FUSED = 50
"""Places of each ranking that a hybrid search looks at, at least."""


class Part(Protocol):
    def best(self, queries: Sequence[str], top: int) -> list[Ranked]: ...


class SearchIndex:
    def __init__(self, passages: Sequence[Passage], parts: Sequence[Part]) -> None:
        """`parts`: one ranks alone; several are fused."""
        self.passages, self._parts = passages, parts

    def search(self, queries: Sequence[str], top: int) -> list[list[Hit]]:
        """Of each query the best passages, best first. An empty query finds nothing."""
        asked = list(dict.fromkeys(query for query in queries if query.strip()))
        found = dict(zip(asked, self._ranked(asked, top), strict=True))
        return [
            [Hit(passage=self.passages[number], score=score) for number, score in found.get(query, [])]
            for query in queries
        ]

    def _ranked(self, queries: list[str], top: int) -> list[Ranked]:
        if not queries:
            return []
        if len(self._parts) == 1:
            return self._parts[0].best(queries, top)
        rankings = [part.best(queries, max(top, FUSED)) for part in self._parts]
        return [fuse(of_query, top) for of_query in zip(*rankings, strict=True)]


def in_memory(passages: Sequence[Passage]) -> SearchIndex:
    """A lexical index of passages at hand, kept nowhere."""
    return SearchIndex(passages, [LexicalIndex.build(passage.words for passage in passages)])


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
        parts: list[Part] = []
        if mode != "dense":
            parts.append(LexicalIndex.load(folder, manifest.passages))
        if mode != "lexical" and manifest.dense is not None:
            parts.append(_dense(folder, manifest.passages, manifest.dense))
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise damaged(folder, " ".join(str(error).split())[:120]) from error
    return SearchIndex(passages, parts)


def _dense(folder: Path, passages: int, settings: DenseSettings) -> Part:
    from turnwise.tools.search.dense import DenseIndex, Encoder

    return DenseIndex.load(folder, passages, Encoder(settings.model), settings.query_prefix)
