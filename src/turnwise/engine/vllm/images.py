"""Contexts with images as vLLM reads them: ids without hashes, and the processed pixels of each image.

vLLM could process images itself. It gets the pixels that the learner computes features of instead, and the ids that
turnwise rendered, so that neither can differ from what is trained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turnwise.core.errors import UserError
from turnwise.core.images import find_images
from turnwise.models.vision.encoder import image_encoder

QWEN = {"pixel_values": "rows", "image_grid_thw": "item"}
IDEFICS = {"pixel_values": "tiles", "pixel_attention_mask": "tiles", "num_patches": "item"}
LAYOUTS: dict[str, dict[str, str]] = {
    "qwen2_vl": QWEN,
    "qwen2_5_vl": QWEN,
    "qwen3_vl": QWEN,
    "idefics3": IDEFICS,
    "smolvlm": IDEFICS,
    "llava": {"pixel_values": "item"},
    "llava_onevision": {"pixel_values": "item", "image_sizes": "item"},
}
"""Inputs of vLLM's models for one image, by model type. rows: [N, ...], joined over images; item: [1, ...], stacked;
tiles: [1, N, ...] of the processor, joined without their first dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInput:
    value: Tensor
    stacked: bool
    """Whether vLLM stacks the values of images, [1, ...] each; else it concatenates them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptImage:
    """An image in a prompt: its ids are those from `start` on, one for each entry of `has_feature`."""

    hash: str
    start: int
    has_feature: tuple[bool, ...]
    """Whether an id stands for a feature of the image. The others are scaffolding between its tiles."""
    inputs: dict[str, PromptInput]


class ImageReader:
    """Turns contexts with images into prompts of vLLM."""

    def __init__(self, model: Any) -> None:
        """Raise UserError if vLLM has no model that computes the same."""
        rotary = model.config.get_text_config().rope_parameters or {}
        if len(rotary.get("mrope_section", (1, 1, 1))) != 3:
            raise UserError(
                "vLLM lacks the rotary positions of tiny_vlm and smollm2-135m-vision. Choose engine native."
            )
        if model.config.model_type == "qwen3_vl" and not rotary.get("mrope_interleaved"):
            raise UserError(
                "vLLM would place the images of this qwen3_vl otherwise than transformers. Set mrope_interleaved in "
                "the rope_parameters of its config.json, or choose engine native."
            )
        encoder = image_encoder(model)
        assert encoder is not None
        if encoder.whole_images:
            raise UserError(
                f"The vLLM engine does not read images of a {model.config.model_type}, in which the tokens of an image "
                "attend to all of it. Choose engine native."
            )
        self._processor = encoder.processor
        self._layout = LAYOUTS[model.config.model_type]
        self._dtype = model.get_input_embeddings().weight.dtype
        self.never_sampled: tuple[int, ...] = tuple(model.get_output_embeddings().never_sampled.tolist())
        """Ids of placeholders, which the learner gives no probability."""

    def read(self, ids: Sequence[int]) -> tuple[tuple[int, ...], tuple[PromptImage, ...]]:
        """Return the ids of a context with the placeholder in place of image tokens, and its images in order."""
        images = tuple(
            PromptImage(
                hash=span.hash,
                start=span.start,
                has_feature=tuple(token < 0 for token in ids[span.start : span.end]),
                inputs=self._arrange(self._processor.process(span.hash).inputs),
            )
            for span in find_images(ids)
        )
        return tuple(self._processor.placeholder_id if token < 0 else token for token in ids), images

    def _arrange(self, inputs: Mapping[str, Tensor]) -> dict[str, PromptInput]:
        """Return what the processor computed for one image as the inputs of vLLM's model."""
        arranged = {}
        for name, layout in self._layout.items():
            value = torch.tensor([inputs["pixel_values"].shape[1]]) if name == "num_patches" else inputs[name]
            value = self._processor.expand(value)
            value = value[0] if layout == "tiles" else value
            value = value.to(self._dtype) if value.is_floating_point() else value
            arranged[name] = PromptInput(value=value, stacked=layout == "item")
        return arranged
