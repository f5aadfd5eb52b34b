"""Dense retrieval: texts as unit vectors of a Hugging Face encoder, in a matrix that is mapped from disk."""

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
MOST_TOKENS = 512
"""Of a text; the rest of a longer one is not looked at."""
BATCH = 32
WINDOW = 1024
"""Texts that are sorted by length before they are cut into batches, so that little is padded."""
ROWS = 1 << 16
"""Of the matrix that are multiplied at a time: what is in memory stays bounded."""


class Encoder:
    """Mean of the last hidden states over a text's tokens, of length 1: sentence encoders are trained so."""

    def __init__(self, name: str, device: str = "cpu") -> None:
        local = not is_hub_name(name) or Path(name).is_dir() or not is_hub_available(name)
        if not is_hub_name(name) and not Path(name).is_dir():
            raise UserError(f"no encoder {name}: give a folder of a Hugging Face model, or its owner/name")
        try:
            with quiet_transformers():
                self._tokenizer: Any = AutoTokenizer.from_pretrained(name, local_files_only=local)
                self._model: Any = AutoModel.from_pretrained(name, local_files_only=local, dtype=torch.float32)
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:120]
            raise UserError(f"{name} cannot be loaded as an encoder ({reason}): give another") from error
        self._model.to(device).eval()
        self._device = device
        places = getattr(self._model.config, "max_position_embeddings", None) or MOST_TOKENS
        self._longest = min(MOST_TOKENS, places, self._tokenizer.model_max_length)
        self._alone = threading.Lock()

    def encode(self, texts: Sequence[str], batch: int = BATCH) -> np.ndarray:
        """[texts, dimensions], float32. Batches are of texts of about one length."""
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        parts = [self._encode([texts[n] for n in order[at : at + batch]]) for at in range(0, len(texts), batch)]
        vectors = np.concatenate(parts)
        return vectors[np.argsort(order)]

    @torch.inference_mode()
    def _encode(self, texts: list[str]) -> np.ndarray:
        with self._alone:
            given = self._tokenizer(
                texts, padding=True, truncation=True, max_length=self._longest, return_tensors="pt"
            ).to(self._device)
            states = self._model(**given).last_hidden_state  # [texts, tokens, dimensions]
            mask = given["attention_mask"].unsqueeze(-1).to(states.dtype)
            means = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
            return torch.nn.functional.normalize(means, dim=-1).cpu().numpy()


class DenseIndex:
    def __init__(self, encoder: Encoder, matrix: np.ndarray, query_prefix: str = "") -> None:
        """`matrix`: [passages, dimensions], rows of length 1."""
        self._encoder, self._matrix, self._prefix = encoder, matrix, query_prefix

    @classmethod
    def load(cls, folder: Path, passages: int, encoder: Encoder, query_prefix: str = "") -> Self:
        matrix = np.load(folder / MATRIX, mmap_mode="r")
        if matrix.ndim != 2 or len(matrix) != passages or matrix.dtype not in (np.float16, np.float32):
            raise ValueError(f"its vectors are of the shape {matrix.shape}, for {passages} passages")
        return cls(encoder, matrix, query_prefix)

    def best(self, queries: Sequence[str], top: int) -> list[RankedPassages]:
        """By cosine, of each query."""
        wanted = self._encoder.encode([self._prefix + query for query in queries])
        if wanted.shape[1] != self._matrix.shape[1]:
            raise UserError("the encoder is not the one that the index was built with: build the index again")
        found: list[RankedPassages] = [[] for _ in queries]
        for at in range(0, len(self._matrix), ROWS):
            scores = wanted @ self._matrix[at : at + ROWS].astype(np.float32).T  # [queries, rows]
            for held, row in zip(found, scores, strict=True):
                held += [(at + number, score) for number, score in top_scores(row, top)]
        return [sorted(held, key=lambda each: (-each[1], each[0]))[:top] for held in found]


def write_vectors(
    texts: Iterator[str], count: int, encoder: Encoder, folder: Path, dtype: str, show: Callable[[int], None]
) -> None:
    """Encodes them as they come, into a file that is as long as all of them. `show`: how many are done."""
    matrix, at = None, 0
    while window := [text for _, text in zip(range(WINDOW), texts, strict=False)]:
        vectors = encoder.encode(window)
        if matrix is None:
            shape = (count, vectors.shape[1])
            matrix = np.lib.format.open_memmap(folder / MATRIX, mode="w+", dtype=np.dtype(dtype), shape=shape)
        matrix[at : at + len(window)] = vectors
        at += len(window)
        show(at)
    if matrix is None or at != count:
        raise ValueError(f"{at} texts to encode where there were {count}")
    matrix.flush()


def best_device() -> str:
    """For building an index, which has the machine to itself; queries are encoded beside training, on the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"
