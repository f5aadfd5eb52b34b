"""How each token id that occurs in recorded trajectories is written: a file beside them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turnwise.core.token_name import TokenName
from turnwise.record.disk import append
from turnwise.record.jsonl import drop_half_line, encode, read_lines

IDS = ("context_ids", "action_ids")


class TokenNames:
    """A line for each id, written when it is first met."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[int] | None = None

    def add(self, rows: Iterable[Mapping[str, Any]], name_token: Callable[[int], TokenName]) -> None:
        """`rows`: of trajectories. A kill may leave a half line, which goes before the next is written."""
        if self._known is None:
            drop_half_line(self._path)
            self._known = {row["id"] for _, row in read_lines(self._path)}
        turns = [turn for row in rows for turn in row["turns"]]
        new = sorted({each for turn in turns for name in IDS for each in turn[name]} - self._known)
        if new:
            append(self._path, b"".join(encode(asdict(name_token(each))) + b"\n" for each in new))
            self._known.update(new)
