"""The job of both sides of vision_gpu.py: episodes with an image before every turn.

Imports neither turnwise nor torch, because vLLM's process has other packages installed.
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image

FIRST_ID, LAST_ID = 5000, 150_000
"""Range of the random text tokens in the large shape, without special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionJob:
    """Ids are drawn from [first_id, last_id). An image of `side` pixels has (side / 28)² tokens in Qwen2-VL."""

    episodes: int = 256
    turns: int = 5
    prompt: int = 200
    observation: int = 20
    new_tokens: int = 48
    side: int = 224
    token_pixels: int = 28
    first_id: int = FIRST_ID
    last_id: int = LAST_ID

    @property
    def image_tokens(self) -> int:
        return (self.side // self.token_pixels) ** 2

    @property
    def longest(self) -> int:
        """Tokens of an episode; two marks surround each image."""
        return self.prompt + self.turns * (self.image_tokens + 2 + self.observation + self.new_tokens)

    def text(self) -> list[list[list[int]]]:
        """Return the text tokens that each episode gets before the image of each turn."""
        rng = np.random.default_rng(1)
        sizes = [self.prompt] + [self.observation] * (self.turns - 1)
        by_turn = [rng.integers(self.first_id, self.last_id, (self.episodes, size)).tolist() for size in sizes]
        return [list(each) for each in zip(*by_turn, strict=True)]

    def images(self, round_number: int) -> list[list[Image.Image]]:
        """Return the images of each episode, one per turn: squares in random colors, others in every round."""
        rng = np.random.default_rng([2, round_number])
        return [[self._board(rng) for _ in range(self.turns)] for _ in range(self.episodes)]

    def _board(self, rng: np.random.Generator) -> Image.Image:
        cells = self.side // self.token_pixels
        colors = rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        return Image.fromarray(colors.repeat(self.token_pixels, axis=0).repeat(self.token_pixels, axis=1))
