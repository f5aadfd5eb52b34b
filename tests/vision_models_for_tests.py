"""Random vision-language models of several architectures, with processors, as model folders; and images."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Processor,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionProcessor,
    LlavaProcessor,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMProcessor,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from turnwise.core.messages import ImagePart
from turnwise.models.loading.tiny import SPECIAL_TOKENS, tiny_pieces, tiny_tokenizer
from turnwise.models.vision.processor import images_only

processing_smolvlm.num2words = str  # a package that SmolVLM's processor needs for videos alone
FIRST_IMAGE_TOKEN = 256 + len(tiny_pieces()) + len(SPECIAL_TOKENS)
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}IMAGE{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PARTS_ONLY = (
    "{% for m in messages %}<|{{ m.role }}|>{% for p in m.content %}{% if p.type == 'image' %}IMAGE"
    "{% elif p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""A template that shows nothing of content that is not a list of parts, as that of SmolVLM."""
TEXT = {  # heads of size 32: vLLM's attention on a CPU has none of size 16
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": FIRST_IMAGE_TOKEN - 1,
    "pad_token_id": FIRST_IMAGE_TOKEN - len(SPECIAL_TOKENS),
}
TOWER = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def tokenizer_with(*tokens: str, marker: str, chat: str = CHAT) -> Any:
    tokenizer = tiny_tokenizer(*tokens)
    tokenizer.chat_template = chat.replace("IMAGE", marker)
    return tokenizer


def qwen(config_class: Any, model_class: Any, processor_class: Any, vision: dict[str, Any]) -> tuple[Any, Any]:
    tokens = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    tokenizer = tokenizer_with(*tokens, marker="<|vision_start|><|image_pad|><|vision_end|>")
    config = config_class(
        text_config=TEXT
        | {
            "vocab_size": FIRST_IMAGE_TOKEN + 4,
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 100.0,
                "mrope_section": [4, 6, 6],
                "mrope_interleaved": config_class is Qwen3VLConfig,  # what vLLM reads; transformers knows it
            },
        },
        vision_config={"patch_size": 4, "spatial_merge_size": 2, "num_heads": 2, "depth": 2, **vision},
        image_token_id=FIRST_IMAGE_TOKEN,
        video_token_id=FIRST_IMAGE_TOKEN + 1,
        vision_start_token_id=FIRST_IMAGE_TOKEN + 2,
        vision_end_token_id=FIRST_IMAGE_TOKEN + 3,
        tie_word_embeddings=True,
    )
    pixels = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, min_pixels=64, max_pixels=64 * 64)
    return model_class(config), images_only(processor_class)(pixels, tokenizer)


def qwen3_vl() -> tuple[Any, Any]:
    """Its vision tower gives features to the outputs of both layers of the language model."""
    vision = {"hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 128, "num_position_embeddings": 64}
    return qwen(
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
        vision | {"deepstack_visual_indexes": [0, 1]},
    )


def llava() -> tuple[Any, Any]:
    config = LlavaConfig(
        vision_config=TOWER
        | {"model_type": "clip_vision_model", "image_size": 24, "patch_size": 8, "projection_dim": 32},
        text_config=TEXT | {"model_type": "llama", "vocab_size": FIRST_IMAGE_TOKEN + 1},
        image_token_index=FIRST_IMAGE_TOKEN,
        vision_feature_layer=-2,
        tie_word_embeddings=False,
    )
    pixels = CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})
    processor = LlavaProcessor(
        pixels,
        tokenizer_with("<image>", marker="<image>\n"),
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    return LlavaForConditionalGeneration(config), processor


def llava_onevision() -> tuple[Any, Any]:
    pinpoints = [[16, 16], [16, 32], [32, 16], [32, 32]]
    config = LlavaOnevisionConfig(
        vision_config=TOWER | {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8},
        text_config=TEXT | {"model_type": "qwen2", "vocab_size": FIRST_IMAGE_TOKEN + 2},
        image_token_index=FIRST_IMAGE_TOKEN,
        video_token_index=FIRST_IMAGE_TOKEN + 1,
        image_grid_pinpoints=pinpoints,
        vision_aspect_ratio="anyres_max_9",
        tie_word_embeddings=False,
    )
    pixels = LlavaOnevisionImageProcessorPil(size={"height": 16, "width": 16}, image_grid_pinpoints=pinpoints)
    processor = images_only(LlavaOnevisionProcessor)(
        pixels,
        tokenizer_with("<image>", "<video>", marker="<image>\n"),
        num_image_tokens=4,
        vision_feature_select_strategy="full",
    )
    return LlavaOnevisionForConditionalGeneration(config), processor


def idefics(
    config_class: Any, model_class: Any, processor_class: Any, pixels_class: Any, *videos: None
) -> tuple[Any, Any]:
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 3) for column in range(1, 3)]
    tokens = ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *tiles)
    tokenizer = tokenizer_with(*tokens, marker="<image>", chat=PARTS_ONLY)
    config = config_class(
        vision_config=TOWER | {"image_size": 16, "patch_size": 4},
        text_config=TEXT | {"model_type": "llama", "vocab_size": FIRST_IMAGE_TOKEN + len(tokens)},
        image_token_id=FIRST_IMAGE_TOKEN,
        scale_factor=2,
        pad_token_id=TEXT["pad_token_id"],
        tie_word_embeddings=False,
    )
    pixels = pixels_class(size={"longest_edge": 32}, max_image_size={"longest_edge": 16})
    return model_class(config), images_only(processor_class)(pixels, tokenizer, *videos, image_seq_len=4)


def gemma3() -> tuple[Any, Any]:
    """Its images have 9 tokens, more than the window of its first layer."""
    tokenizer = tokenizer_with("<boi>", "<image>", "<eoi>", marker="<boi>")
    names = {"boi_token": "<boi>", "image_token": "<image>", "eoi_token": "<eoi>"}  # as in Gemma's own tokenizer
    tokenizer._set_model_specific_special_tokens(names)
    config = Gemma3Config(
        text_config=TEXT
        | {
            "vocab_size": FIRST_IMAGE_TOKEN + 3,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        vision_config=TOWER | {"model_type": "siglip_vision_model", "image_size": 24, "patch_size": 4},
        mm_tokens_per_image=9,
        boi_token_index=FIRST_IMAGE_TOKEN,
        image_token_index=FIRST_IMAGE_TOKEN + 1,
        eoi_token_index=FIRST_IMAGE_TOKEN + 2,
    )
    pixels = Gemma3ImageProcessorPil(size={"height": 24, "width": 24})
    return Gemma3ForConditionalGeneration(config), Gemma3Processor(pixels, tokenizer, image_seq_length=9)


VISION_MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "gemma3": gemma3,
    "qwen2_vl": lambda: qwen(
        Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor, {"embed_dim": 32, "hidden_size": 128}
    ),
    "qwen2_5_vl": lambda: qwen(
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        {
            "hidden_size": 32,
            "intermediate_size": 32,
            "out_hidden_size": 128,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
    ),
    "qwen3_vl": qwen3_vl,
    "llava": llava,
    "llava_onevision": llava_onevision,
    "idefics3": lambda: idefics(
        Idefics3Config, Idefics3ForConditionalGeneration, Idefics3Processor, Idefics3ImageProcessorPil
    ),
    "smolvlm": lambda: idefics(
        SmolVLMConfig, SmolVLMForConditionalGeneration, SmolVLMProcessor, SmolVLMImageProcessorPil, None
    ),
}


def write_vision_model(name: str, folder: Path) -> Path:
    """Write a model folder with fixed weights, sharper than the initial ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, processor = VISION_MODELS[name]()
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape) * 0.15 if parameter.ndim > 1 else parameter.data
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def png(width: int, height: int, seed: int = 0) -> bytes:
    """Return a PNG of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def plain_image(color: tuple[int, int, int], size: int = 16) -> ImagePart:
    """Return a square of one color."""
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), color).save(buffer, "PNG")
    return ImagePart(data=buffer.getvalue())
