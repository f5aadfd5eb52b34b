"""Dense retrieval: unit vectors of a Hugging Face encoder, in a matrix that is memory-mapped from disk."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from turnwise.core.errors import UserError
from turnwise.models.loading.hub import is_hub_available, is_hub_name
from turnwise.models.loading.pretrained import quiet_transformers
from turnwise.tools.search.lexical import RankedPassages, top_scores

MATRIX = "vectors.npy"
MAX_TOKENS = 512
"""Tokens of a text; the rest is ignored."""
BATCH_SIZE = 32
WINDOW = 1024
"""Texts that are sorted by length before batching, to reduce padding."""
CHUNK_ROWS = 1 << 16
"""Rows of the matrix per multiplication, to bound memory."""


class Encoder:
    """Sentence encoder: normalized mean of the last hidden states over a text's tokens."""

    def __init__(self, name: str, device: str = "cpu") -> None:
        local = not is_hub_name(name) or Path(name).is_dir() or not is_hub_available(name)
        if not is_hub_name(name) and not Path(name).is_dir():
            raise UserError(f"There is no encoder {name}: give the folder or the owner/name of a Hugging Face model.")
        try:
            with quiet_transformers():
                self._tokenizer: Any = AutoTokenizer.from_pretrained(name, local_files_only=local)
                self._model: Any = AutoModel.from_pretrained(name, local_files_only=local, dtype=torch.float32)
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:120]
            raise UserError(f"{name} cannot be loaded as an encoder ({reason}): give another.") from error
        self._model.to(device).eval()
        self._device = device
        positions = getattr(self._model.config, "max_position_embeddings", None) or MAX_TOKENS
        self._max_length = min(MAX_TOKENS, positions, self._tokenizer.model_max_length)
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str], batch: int = BATCH_SIZE) -> np.ndarray:
        """Encode to float32 [texts, dimensions]. Texts of similar length share a batch."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        batches = [order[start : start + batch] for start in range(0, len(texts), batch)]
        vectors = np.concatenate([self._encode([texts[index] for index in indices]) for indices in batches])
        return vectors[np.argsort(order)]

    @torch.inference_mode()
    def _encode(self, texts: list[str]) -> np.ndarray:
        with self._lock:
            inputs = self._tokenizer(
                texts, padding=True, truncation=True, max_length=self._max_length, return_tensors="pt"
            ).to(self._device)
            states = self._model(**inputs).last_hidden_state  # [texts, tokens, dimensions]
            mask = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
            means = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
            return torch.nn.functional.normalize(means, dim=-1).cpu().numpy()


class DenseIndex:
    def __init__(self, encoder: Encoder, matrix: np.ndarray, query_prefix: str = "") -> None:
        """`matrix`: unit vectors [passages, dimensions]."""
        self._encoder, self._matrix, self._prefix = encoder, matrix, query_prefix

    @classmethod
    def load(cls, folder: Path, passages: int, encoder: Encoder, query_prefix: str = "") -> Self:
        matrix = np.load(folder / MATRIX, mmap_mode="r")
        if matrix.ndim != 2 or len(matrix) != passages or matrix.dtype not in (np.float16, np.float32):
            raise ValueError(f"its vectors have shape {matrix.shape}, for {passages} passages")
        return cls(encoder, matrix, query_prefix)

    def retrieve(self, queries: Sequence[str], top: int) -> list[RankedPassages]:
        """Rank the passages for each query by cosine similarity."""
        vectors = self._encoder.encode([self._prefix + query for query in queries])
        if vectors.shape[1] != self._matrix.shape[1]:
            raise UserError("The index was built with another encoder: build the index again.")
        rankings: list[RankedPassages] = [[] for _ in queries]
        for start in range(0, len(self._matrix), CHUNK_ROWS):
            scores = vectors @ self._matrix[start : start + CHUNK_ROWS].astype(np.float32).T  # [queries, rows]
            for ranking, row in zip(rankings, scores, strict=True):
                ranking += [(start + number, score) for number, score in top_scores(row, top)]
        return [sorted(ranking, key=lambda item: (-item[1], item[0]))[:top] for ranking in rankings]


def write_vectors(
    texts: Iterator[str], count: int, encoder: Encoder, folder: Path, dtype: str, progress: Callable[[int], None]
) -> None:
    """Encode `count` texts window by window into a memory-mapped file. `progress` receives the number done."""
    matrix, done = None, 0
    while window := [text for _, text in zip(range(WINDOW), texts, strict=False)]:
        vectors = encoder.encode(window)
        if matrix is None:
            shape = (count, vectors.shape[1])
            matrix = np.lib.format.open_memmap(folder / MATRIX, mode="w+", dtype=np.dtype(dtype), shape=shape)
        matrix[done : done + len(window)] = vectors
        done += len(window)
        progress(done)
    if matrix is None or done != count:
        raise ValueError(f"encoded {done} texts instead of {count}")
    matrix.flush()


def best_device() -> str:
    """Device for building an index. Queries are encoded on the CPU, since training uses the GPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"
