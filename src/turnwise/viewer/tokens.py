"""The texts of token ids: only where each stands is kept, so that large vocabularies cost little."""

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.record.jsonl_follower import LineBlock, LineFollower
from turnwise.viewer.index import FOLDER
from turnwise.viewer.lines import read_row
from turnwise.viewer.root import NotThere, Root

TOKENS = "tokens.jsonl"
MAX_LINE = 1 << 16
MAX_IDS = 1_000_000


class TokenTexts:
    """A file of token texts, read as it grows. Older runs have none, and no text is known then."""

    def __init__(self, root: Root, folder: Path, model: str | None) -> None:
        """`model`: of an evaluation, whose models may have different tokens."""
        self._root, self._folder = root, folder
        self._file = (FOLDER, TOKENS) if model is None else ("models", f"{model}.{TOKENS}")
        self._follower = LineFollower(MAX_LINE)
        self._ids, self._offsets = array("q"), array("q")

    def refresh(self) -> None:
        """Not for two threads at once."""
        try:
            with self._root.open(self._folder, *self._file) as file:
                if self._follower.is_replaced(file):
                    self._forget()
                for block in self._follower.read_blocks(file):
                    self._add(block)
        except NotThere:
            self._forget()

    def _forget(self) -> None:
        self._follower.restart()
        self._ids, self._offsets = array("q"), array("q")

    def _add(self, block: LineBlock) -> None:
        for line, offset in zip(block.lines, block.offsets(), strict=True):
            row = read_row(line)
            token = None if row is None else row.get("id")
            if type(token) is int and 0 <= token < 1 << 40 and len(self._ids) < MAX_IDS:
                self._ids.append(token)
                self._offsets.append(offset)

    def texts(self, tokens: Iterable[int]) -> dict[str, dict[str, Any]]:
        """What is known of these ids, by the id as text."""
        ids = np.array(self._ids, np.int64)
        offsets = np.array(self._offsets, np.int64)[np.isin(ids, np.fromiter(tokens, np.int64))]
        if not len(offsets):
            return {}
        found: dict[str, dict[str, Any]] = {}
        try:
            with self._root.open(self._folder, *self._file) as file:
                for offset in offsets.tolist():
                    file.seek(offset)
                    row = read_row(file.readline(MAX_LINE + 1).removesuffix(b"\n"))
                    if row is not None and isinstance(row.get("text"), str):
                        found[str(row["id"])] = {"text": row["text"], "special": row.get("special") is True}
        except NotThere:
            return {}
        return found
