"""Counts the seams at which whole-text tokenisation would have cut otherwise. They are counted, never repaired."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from turnwise.render.codec import Codec

WINDOW = 8
"""Tokens looked at on either side of a seam."""
CACHED_SEAMS = 8192


class SeamCounter:
    """A seam is where sampled ids and appended ids meet. Its neighbours are few, so answers are kept."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._cut_otherwise = lru_cache(maxsize=CACHED_SEAMS)(self._look)

    def count(self, pieces: Sequence[Sequence[int]]) -> int:
        """How many of the seams between neighbouring pieces one tokenisation of the whole text would lie across."""
        filled = [piece for piece in pieces if piece]
        return sum(
            self._cut_otherwise(tuple(left[-WINDOW:]), tuple(right[:WINDOW])) for left, right in pairwise(filled)
        )

    def _look(self, left: tuple[int, ...], right: tuple[int, ...]) -> bool:
        control = self._codec.control_ids
        if left[-1] in control or right[0] in control:
            return False
        left_from = max((place + 1 for place, token in enumerate(left) if token in control), default=0)
        right_to = next((place for place, token in enumerate(right) if token in control), len(right))
        before = b"".join(self._codec.pieces(left[left_from:])).lstrip(bytes(range(0x80, 0xC0)))
        behind = b"".join(self._codec.pieces(right[:right_to]))
        try:
            head = before.decode()
        except UnicodeDecodeError:  # half a character before the seam: no text has a seam there
            return True
        return self._codec.crossed(head + behind.decode(errors="ignore"), len(head))
