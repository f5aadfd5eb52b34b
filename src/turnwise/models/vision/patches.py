"""Images cut into patches as bytes, for the processors of Qwen2-VL and its successors.

Pixels depend on a byte and its channel alone, so their values are looked up in a table that the processor itself
computed: equal values, in a twentieth of the processor's time, and an image in memory takes a quarter of the bytes, or
an eighth where the processor repeats it in time.
"""

from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from turnwise.pictures.image import import_pillow

if TYPE_CHECKING:
    from PIL.Image import Image

PROCESSORS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorPil")
"""The first is on torchvision and cannot be imported without it. A model that is loaded has it wherever it can."""
STEPS = ("do_resize", "do_convert_rgb", "do_rescale", "do_normalize")


class PatchCutter:
    """Preprocess images as an image processor does, for images that it would not resize."""

    def __init__(self, processor: Any) -> None:
        self._size, self._merge = processor.patch_size, processor.merge_size
        self._repeats = processor.temporal_patch_size
        self._limits = processor.size["shortest_edge"], processor.size["longest_edge"]
        self._table = torch.zeros(3 * 256)
        """Value of each byte, by channel."""

    @classmethod
    def for_processor(cls, processor: Any) -> "PatchCutter | None":
        """Return one with the values of an image processor; None if that is of another class or leaves steps out."""
        if type(processor).__name__ not in PROCESSORS or not all(getattr(processor, step) for step in STEPS):
            return None
        cutter = cls(processor)
        return cutter if cutter._read_table(processor) else None

    def _read_table(self, processor: Any) -> bool:
        """Let the processor compute the values of all bytes. Returns whether it does what `cut` and `expand` do."""
        unit = self._size * self._merge
        side = unit * ceil(sqrt(max(256, self._limits[0])) / unit)
        pixels = np.arange(side * side * 3) // 3 % 256
        image = import_pillow().Image.fromarray(pixels.astype(np.uint8).reshape(side, side, 3))
        inputs = self.cut(image)
        if inputs is None:
            return False
        values = processor([image], return_tensors="pt")["pixel_values"]
        patches = inputs["pixel_values"]
        first = values.view(len(values), 3, self._repeats, -1)[:, :, 0]
        self._table[self._table_indices(patches)[:, :, 0]] = first
        return torch.equal(self.expand(patches), values)

    def cut(self, image: "Image") -> dict[str, Tensor] | None:
        """Return the bytes of an RGB image, patch by patch, and its grid; None if it has to be resized."""
        (width, height), size, merge = image.size, self._size, self._merge
        smallest, largest = self._limits
        if width % (size * merge) or height % (size * merge) or not smallest <= width * height <= largest:
            return None
        rows, columns = height // size, width // size
        cells = np.asarray(image).reshape(rows // merge, merge, size, columns // merge, merge, size, 3)
        patches = np.ascontiguousarray(cells.transpose(0, 3, 1, 4, 6, 2, 5)).reshape(rows * columns, -1)
        return {"pixel_values": torch.from_numpy(patches), "image_grid_thw": torch.tensor([[1, rows, columns]])}

    def expand(self, patches: Tensor) -> Tensor:
        """Return the pixel values of bytes, on their device. [P, 3 * size * size] -> [P, 3 * repeats * size * size]"""
        if self._table.device != patches.device:
            self._table = self._table.to(patches.device)
        values = self._table[self._table_indices(patches)]
        return values.expand(-1, -1, self._repeats, -1).reshape(len(patches), -1)

    def _table_indices(self, patches: Tensor) -> Tensor:
        """Return the index of each byte in the table. [P, 3 * size * size] -> [P, 3, 1, size * size]"""
        offsets = torch.arange(0, 3 * 256, 256, device=patches.device).view(1, 3, 1, 1)
        return patches.view(len(patches), 3, 1, -1).int() + offsets
