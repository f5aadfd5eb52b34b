"""Lexical retrieval with BM25 (library bm25s), its scores memory-mapped from disk."""

import json
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np

from turnwise.core.errors import UserError, optional_packages

WORD = re.compile(r"[^\W_]+")
"""An identifier such as read_text is two words, so that each can be found."""
MAX_WORD_CHARS = 64
MAX_QUERY_TERMS = 64
STOP_WORDS = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "by", "did", "do", "does", "for", "from", "had", "has", "have", "how"}
    | {"in", "is", "it", "its", "of", "on", "or", "that", "the", "their", "there", "this", "to", "was", "were", "what"}
    | {"when", "where", "which", "who", "whom", "whose", "why", "will", "with"}
)
"""Ignored in queries that have other words; the index contains them."""

RankedPassages = list[tuple[int, float]]
"""Passage numbers with scores, best first; ties in passage order."""


def tokenize(text: str) -> list[str]:
    return [word for word in WORD.findall(text.lower()) if len(word) <= MAX_WORD_CHARS]


def query_terms(query: str) -> list[str]:
    """Distinct words of a query, without stop words unless there are no others."""
    words = list(dict.fromkeys(tokenize(query)))
    return ([word for word in words if word not in STOP_WORDS] or words)[:MAX_QUERY_TERMS]


class LexicalIndex:
    def __init__(self, retriever: Any) -> None:
        self._retriever = retriever
        self._vocabulary: dict[str, int] = retriever.vocab_dict

    @classmethod
    def build(cls, texts: Iterable[str]) -> Self:
        """Build from texts. Needs four bytes of memory per word, plus the scores."""
        vocabulary: dict[str, int] = {}
        token_ids = [
            array("i", [vocabulary.setdefault(word, len(vocabulary)) for word in tokenize(text)]) for text in texts
        ]
        if not vocabulary:
            raise UserError("These texts contain no words: give others.")
        retriever = _import_bm25s().BM25(method="lucene", backend="numpy")
        retriever.index((token_ids, vocabulary), show_progress=False, create_empty_token=False)
        return cls(retriever)

    def save(self, folder: Path) -> None:
        self._retriever.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: Path, passages: int) -> Self:
        """Load a saved index. Raises ValueError or the library's exceptions if the files are damaged."""
        params = json.loads((folder / "params.index.json").read_text(encoding="utf-8"))
        if params["num_docs"] != passages:
            raise ValueError(f"it has scores for {params['num_docs']} passages, not {passages}")
        retriever = _import_bm25s().BM25.load(folder, mmap=True, show_progress=False, backend="numpy")
        scores, words = retriever.scores, len(retriever.vocab_dict)
        consistent = len(scores["indptr"]) == words + 1 and scores["indptr"][-1] == len(scores["data"])
        if not consistent or len(scores["data"]) != len(scores["indices"]):
            raise ValueError("its words and scores do not match")
        return cls(retriever)

    def retrieve(self, queries: Sequence[str], top: int) -> list[RankedPassages]:
        """Rank the passages that share a word with each query."""
        return [self._retrieve(query, top) for query in queries]

    def _retrieve(self, query: str, top: int) -> RankedPassages:
        term_ids = [self._vocabulary[word] for word in query_terms(query) if word in self._vocabulary]
        if not term_ids:
            return []
        return top_scores(self._retriever.get_scores_from_ids(term_ids), top, above=0.0)


def top_scores(scores: np.ndarray, top: int, above: float = -np.inf) -> RankedPassages:
    """The highest `scores` [passages]; ties in passage order, on every machine."""
    numbers = np.flatnonzero(scores > above)
    values = scores[numbers]
    if top < len(values):
        threshold = np.partition(values, len(values) - top)[len(values) - top]
        numbers, values = numbers[values >= threshold], values[values >= threshold]
    order = np.argsort(-values, kind="stable")[:top]
    return [(int(numbers[index]), float(values[index])) for index in order]


def _import_bm25s() -> Any:
    with optional_packages("Search", "search", "bm25s"), _without_jax():
        return import_module("bm25s")


@contextmanager
def _without_jax() -> Iterator[None]:
    """Hide jax: bm25s imports it if it is installed, and jax then reserves three quarters of the GPU memory."""
    hidden = {name: sys.modules.pop(name, None) for name in ("jax", "jax.lax")}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in hidden.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
