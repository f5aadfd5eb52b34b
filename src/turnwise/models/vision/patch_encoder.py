"""A patch encoder in front of a Llama, as a small Qwen2-VL: for language models that learn to see here.

The vision tower has no layers. An image is cut into patches, four of which become one token; rows and columns of an
image are its rotary positions, so neighbours above and below are as near as those to the left and right. Text has the
same positions on all axes, which are those of the Llama.
"""

from typing import Any

import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from turnwise.models.vision.architectures import equip_model
from turnwise.models.vision.processor import images_only

IMAGE = "<|image_pad|>"
MERGE = 2
"""Patches per token, on each side."""
MAX_TOKENS = 256
"""Tokens of an image; larger ones are made smaller."""
TEXT_FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "initializer_range",
    "max_position_embeddings",
    "pad_token_id",
    "eos_token_id",
)


def patch_encoder_config(text: Any, *, pixels: int, embed_dim: int, **more: Any) -> Qwen2VLConfig:
    """Return the configuration of a Llama with one more token, the image's, and a patch encoder.

    `pixels`: of a token, on each side. `more`: further settings of the language model.
    """
    head_dim = text.hidden_size // text.num_attention_heads
    # frequencies of time, row and column by turns: row and column both get high ones, which tell neighbours apart
    sections = [0, 1, 1] * (head_dim // 4)
    return Qwen2VLConfig(
        text_config={
            **{name: getattr(text, name) for name in TEXT_FIELDS},
            "bos_token_id": None,
            "vocab_size": text.vocab_size + 1,
            "rope_parameters": {**text.rope_parameters, "mrope_section": sections},
            **more,
        },
        vision_config={
            "depth": 0,
            "embed_dim": embed_dim,
            "num_heads": 4,
            "hidden_size": text.hidden_size,
            "patch_size": pixels // MERGE,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 1,
            "initializer_range": text.initializer_range,
        },
        image_token_id=text.vocab_size,
        initializer_range=text.initializer_range,
        tie_word_embeddings=True,
    )


def equip_patch_encoder(model: Qwen2VLForConditionalGeneration, tokenizer: Any) -> None:
    """Let the model read images; its tokenizer has the token IMAGE."""
    patch = model.config.vision_config.patch_size
    pixels = Qwen2VLImageProcessorPil(
        patch_size=patch,
        merge_size=MERGE,
        temporal_patch_size=1,
        min_pixels=(patch * MERGE) ** 2,
        max_pixels=MAX_TOKENS * (patch * MERGE) ** 2,
    )
    equip_model(model, images_only(Qwen2VLProcessor)(pixels, tokenizer))


def pixels_per_token(model: Any) -> int:
    """Return the side in pixels of what one token of an image shows."""
    return model.config.vision_config.patch_size * model.config.vision_config.spatial_merge_size


@torch.no_grad()
def match_embeddings(model: Qwen2VLForConditionalGeneration) -> None:
    """Give the features of random cells the mean and the variance of token embeddings.

    As initialised, features of tiny_vlm are twelve times as large, and what the layers add to them has no weight.
    """
    patch = model.config.vision_config.patch_size
    colors, details = torch.randn(256, 1, 3, 1), 0.5 * torch.randn(256, MERGE**2, 3, patch**2)
    visual = model.model.visual
    features = visual.merger(visual.patch_embed((colors + details).flatten(0, 1).flatten(1)))
    scale = model.get_input_embeddings().weight.std() / features.std(dim=0).mean()
    project = visual.merger.mlp[2]
    project.weight.mul_(scale)
    project.bias.sub_(features.mean(dim=0)).mul_(scale)
