"""tiny_vlm: tiny with a patch encoder, as a small Qwen2-VL. One token of an image shows PIXELS x PIXELS pixels.

Environments that draw one cell as PIXELS x PIXELS pixels (`cell_pixels`) give it one token per cell. Rows and columns
of an image are its rotary positions, so neighbours above and below are as near as those to the left and right.
"""

import torch
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from turnwise.models.loading.tiny import tiny_config, tiny_tokenizer
from turnwise.models.vision.architectures import equip_model
from turnwise.models.vision.processor import images_only

IMAGE = "<|image_pad|>"
PIXELS, MERGE = 8, 2
ROTARY_SECTIONS = [0, 1, 1] * 4
"""Frequencies of time, row and column by turns. Row and column both get high ones, which tell neighbours apart."""
MAX_TOKENS = 256
"""Tokens of an image; larger ones are made smaller."""


def tiny_vlm_tokenizer() -> PreTrainedTokenizerFast:
    """Return tiny's tokenizer with a token for images."""
    return tiny_tokenizer(IMAGE)


def tiny_vlm_config() -> Qwen2VLConfig:
    """Return tiny's configuration with a vision tower that has no layers: patches, four of which become one token."""
    text = tiny_config()
    return Qwen2VLConfig(
        text_config={
            **{name: getattr(text, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")},
            **{name: getattr(text, name) for name in ("num_key_value_heads", "intermediate_size", "initializer_range")},
            **{name: getattr(text, name) for name in ("max_position_embeddings", "pad_token_id", "eos_token_id")},
            "bos_token_id": None,
            "vocab_size": text.vocab_size + 1,
            "rope_parameters": {**text.rope_parameters, "mrope_section": ROTARY_SECTIONS},
        },
        vision_config={
            "depth": 0,
            "embed_dim": 64,
            "num_heads": 4,
            "hidden_size": text.hidden_size,
            "patch_size": PIXELS // MERGE,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 1,
            "initializer_range": text.initializer_range,
        },
        image_token_id=text.vocab_size,
        initializer_range=text.initializer_range,
        tie_word_embeddings=True,
    )


def tiny_vlm_model(seed: int = 0) -> Qwen2VLForConditionalGeneration:
    """Return untrained float32 weights on the CPU that depend on the seed only. Keeps the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Qwen2VLForConditionalGeneration(tiny_vlm_config()).eval()
        _match_embeddings(model)
    pixels = Qwen2VLImageProcessorPil(
        patch_size=PIXELS // MERGE,
        merge_size=MERGE,
        temporal_patch_size=1,
        min_pixels=PIXELS**2,
        max_pixels=MAX_TOKENS * PIXELS**2,
    )
    equip_model(model, images_only(Qwen2VLProcessor)(pixels, tiny_vlm_tokenizer()))
    return model


@torch.no_grad()
def _match_embeddings(model: Qwen2VLForConditionalGeneration) -> None:
    """Give the features of random cells the mean and the variance of token embeddings.

    As initialised, features are twelve times as large, and what the layers add to them has no weight.
    """
    colors, details = torch.randn(256, 1, 3, 1), 0.5 * torch.randn(256, MERGE**2, 3, (PIXELS // MERGE) ** 2)
    visual = model.model.visual
    features = visual.merger(visual.patch_embed((colors + details).flatten(0, 1).flatten(1)))
    scale = model.get_input_embeddings().weight.std() / features.std(dim=0).mean()
    project = visual.merger.mlp[2]
    project.weight.mul_(scale)
    project.bias.sub_(features.mean(dim=0)).mul_(scale)
