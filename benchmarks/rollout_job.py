"""The job of both sides of rollout_gpu.py and vision_gpu.py: episodes of fixed length, with images or without.

Imports neither turnwise nor torch, because vLLM's process has other packages installed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJob:
    """Text ids are drawn from [first_id, last_id), without special tokens.

    An image of `image_side` pixels has (image_side / token_pixels)² tokens, between two marks. 0: no images.
    """

    episodes: int = 512
    turns: int = 5
    prompt: int = 200
    observation: int = 60
    new_tokens: int = 48
    first_id: int = 20
    last_id: int = 49_000
    image_side: int = 0
    token_pixels: int = 28

    @property
    def longest(self) -> int:
        """Tokens of an episode."""
        image = (self.image_side // self.token_pixels) ** 2 + 2 if self.image_side else 0
        return self.prompt + self.turns * (image + self.observation + self.new_tokens)

    def text(self) -> list[list[list[int]]]:
        """Return the text tokens that each episode gets before each turn."""
        rng = np.random.default_rng(1)
        sizes = [self.prompt] + [self.observation] * (self.turns - 1)
        by_turn = [rng.integers(self.first_id, self.last_id, (self.episodes, size)).tolist() for size in sizes]
        return [list(each) for each in zip(*by_turn, strict=True)]

    def images(self, round_number: int) -> "list[list[Image]]":
        """Return the images of each episode, one per turn: squares in random colors, others in every round."""
        rng = np.random.default_rng([2, round_number])
        return [[self._board(rng) for _ in range(self.turns)] for _ in range(self.episodes)]

    def _board(self, rng: np.random.Generator) -> "Image":
        from PIL import Image

        cells = self.image_side // self.token_pixels
        colors = rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        return Image.fromarray(colors.repeat(self.token_pixels, axis=0).repeat(self.token_pixels, axis=1))
