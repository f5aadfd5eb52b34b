"""Lexical retrieval: BM25 by the library bm25s, its scores in arrays that are mapped from disk."""

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

from turnwise.core.errors import UserError

WORD = re.compile(r"[^\W_]+")
"""An identifier such as read_text is two words, so that either is found."""
LONGEST_WORD = 64
MOST_WORDS = 64
"""Different words of a query; more are not looked at."""
STOP_WORDS = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "by", "did", "do", "does", "for", "from", "had", "has", "have", "how"}
    | {"in", "is", "it", "its", "of", "on", "or", "that", "the", "their", "there", "this", "to", "was", "were", "what"}
    | {"when", "where", "which", "who", "whom", "whose", "why", "will", "with"}
)
"""Not looked for in a query that has other words; they are in the index all the same."""

RankedPassages = list[tuple[int, float]]
"""Passage and score, best first; of equal scores the earlier passage."""


def tokenize(text: str) -> list[str]:
    return [word for word in WORD.findall(text.lower()) if len(word) <= LONGEST_WORD]


def query_terms(query: str) -> list[str]:
    """Each once; those that are everywhere only where there is nothing else."""
    words = list(dict.fromkeys(tokenize(query)))
    return ([word for word in words if word not in STOP_WORDS] or words)[:MOST_WORDS]


class LexicalIndex:
    def __init__(self, retriever: Any) -> None:
        self._retriever = retriever
        self._vocabulary: dict[str, int] = retriever.vocab_dict

    @classmethod
    def build(cls, texts: Iterable[str]) -> Self:
        """Holds of all texts the numbers of their words, four bytes each, and then the scores."""
        vocabulary: dict[str, int] = {}
        numbers = [
            array("i", [vocabulary.setdefault(word, len(vocabulary)) for word in tokenize(text)]) for text in texts
        ]
        if not vocabulary:
            raise UserError("there is no word to find in these texts: give others")
        retriever = _bm25s().BM25(method="lucene", backend="numpy")
        retriever.index((numbers, vocabulary), show_progress=False, create_empty_token=False)
        return cls(retriever)

    def save(self, folder: Path) -> None:
        self._retriever.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: Path, passages: int) -> Self:
        """Raises what numpy, json and the library raise for files that are none of theirs; ValueError for misfits."""
        params = json.loads((folder / "params.index.json").read_text(encoding="utf-8"))
        if params["num_docs"] != passages:
            raise ValueError(f"its scores are of {params['num_docs']} passages, not {passages}")
        retriever = _bm25s().BM25.load(folder, mmap=True, show_progress=False, backend="numpy")
        scores, words = retriever.scores, len(retriever.vocab_dict)
        fits = len(scores["indptr"]) == words + 1 and scores["indptr"][-1] == len(scores["data"])
        if not fits or len(scores["data"]) != len(scores["indices"]):
            raise ValueError("its words and scores do not fit together")
        return cls(retriever)

    def best(self, queries: Sequence[str], top: int) -> list[RankedPassages]:
        """Of each query; passages that share no word with it are not among them."""
        return [self._best(query, top) for query in queries]

    def _best(self, query: str, top: int) -> RankedPassages:
        known = [self._vocabulary[word] for word in query_terms(query) if word in self._vocabulary]
        if not known:
            return []
        return top_scores(self._retriever.get_scores_from_ids(known), top, above=0.0)


def top_scores(scores: np.ndarray, top: int, above: float = -np.inf) -> RankedPassages:
    """The highest of these scores [passages]; ties in the order of the passages, on every machine."""
    found = np.flatnonzero(scores > above)
    held = scores[found]
    if top < len(held):
        least = np.partition(held, len(held) - top)[len(held) - top]
        found, held = found[held >= least], held[held >= least]
    order = np.argsort(-held, kind="stable")[:top]
    return [(int(found[place]), float(held[place])) for place in order]


def _bm25s() -> Any:
    try:
        with _without_jax():
            return import_module("bm25s")
    except ModuleNotFoundError as error:
        raise UserError("search needs bm25s: pip install 'turnwise[search]'") from error


@contextmanager
def _without_jax() -> Iterator[None]:
    """bm25s tries jax where it finds it, and jax then keeps three quarters of a GPU's memory for itself."""
    hidden = {name: sys.modules.pop(name, None) for name in ("jax", "jax.lax")}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in hidden.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
