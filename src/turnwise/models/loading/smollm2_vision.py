"""smollm2-135m-vision: SmolLM2 with an untrained patch encoder, which learns to see in a warm-up.

One token of an image shows PIXELS x PIXELS pixels: one cell as environments draw it by default.
"""

import contextlib
import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from turnwise.files.disk import atomic_folder
from turnwise.files.package_data import read_data
from turnwise.models.loading.catalogue import (
    OTHER_CACHE,
    PIXELS_PER_TOKEN,
    SMOLLM2_VISION,
    SMOLLM2_VISION_KEY,
    cached_model_folder,
)
from turnwise.models.loading.pretrained import quiet_transformers
from turnwise.models.loading.save import write_model
from turnwise.models.loading.smollm2 import smollm2_folder
from turnwise.models.vision.patch_encoder import IMAGE, equip_patch_encoder, match_embeddings, patch_encoder_config

logger = logging.getLogger(__name__)

PIXELS, EMBED_DIM = PIXELS_PER_TOKEN[SMOLLM2_VISION], 128


def smollm2_vision_folder() -> Path:
    """Return the cached Hugging Face folder of the model. The first call creates it from that of SmolLM2."""
    folder = cached_model_folder(SMOLLM2_VISION_KEY)
    if not folder.is_dir():
        source = smollm2_folder()
        logger.info("%s: adding a patch encoder to SmolLM2 in %s (once)", SMOLLM2_VISION, folder)
        with quiet_transformers():
            llama = AutoModelForCausalLM.from_pretrained(source, local_files_only=True)
            tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
        model = add_patch_encoder(llama, tokenizer)
        with contextlib.suppress(FileExistsError), atomic_folder(folder, OTHER_CACHE) as temporary:
            write_model(model, tokenizer, temporary)
    return folder


def vision_config(text: LlamaConfig) -> Qwen2VLConfig:
    """Return the configuration of a Llama with a patch encoder."""
    return patch_encoder_config(text, pixels=PIXELS, embed_dim=EMBED_DIM, rms_norm_eps=text.rms_norm_eps)


def add_patch_encoder(llama: Any, tokenizer: Any) -> Qwen2VLForConditionalGeneration:
    """Return the Llama with a patch encoder, with the same weights every time. The tokenizer gets the image's token."""
    tokenizer.add_tokens([IMAGE], special_tokens=True)
    tokenizer.chat_template = read_data("turnwise.models", "data/smollm2_vision_chat.jinja")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = Qwen2VLForConditionalGeneration(vision_config(llama.config)).eval()
        _copy_weights(llama.model, model.model.language_model)
        match_embeddings(model)
    model.generation_config = llama.generation_config
    equip_patch_encoder(model, tokenizer)
    return model


@torch.no_grad()
def _copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copy a Llama into the language model of a Qwen2-VL, which differs in biases and the row of the image's token."""
    weights = dict(source.named_parameters())
    for name, parameter in target.named_parameters():
        if name == "embed_tokens.weight":
            parameter[:-1] = weights[name]
            parameter[-1] = weights[name].mean(dim=0)
        elif name.endswith("_proj.bias"):
            parameter.zero_()
        else:
            parameter.copy_(weights[name])
