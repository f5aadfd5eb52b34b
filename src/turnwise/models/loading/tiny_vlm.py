"""tiny_vlm: tiny with a patch encoder. One token of an image shows PIXELS x PIXELS pixels.

Environments that draw one cell as PIXELS x PIXELS pixels (`cell_pixels`) give it one token per cell.
"""

import torch
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration

from turnwise.models.loading.catalogue import PIXELS_PER_TOKEN, TINY_VLM
from turnwise.models.loading.tiny import tiny_config, tiny_tokenizer
from turnwise.models.vision.patch_encoder import IMAGE, equip_patch_encoder, match_embeddings, patch_encoder_config

PIXELS = PIXELS_PER_TOKEN[TINY_VLM]


def tiny_vlm_tokenizer() -> PreTrainedTokenizerFast:
    """Return tiny's tokenizer with a token for images."""
    return tiny_tokenizer(IMAGE)


def tiny_vlm_config() -> Qwen2VLConfig:
    return patch_encoder_config(tiny_config(), pixels=PIXELS, embed_dim=64)


def tiny_vlm_model(seed: int = 0) -> Qwen2VLForConditionalGeneration:
    """Return untrained float32 weights on the CPU that depend on the seed only. Keeps the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = Qwen2VLForConditionalGeneration(tiny_vlm_config()).eval()
        match_embeddings(model)
    equip_patch_encoder(model, tiny_vlm_tokenizer())
    return model
