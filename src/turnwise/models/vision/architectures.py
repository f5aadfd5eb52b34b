"""Vision-language models that turnwise supports, and what it adds to them."""

from typing import Any

import transformers
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from turnwise.core.errors import UserError
from turnwise.models.head import mask_output
from turnwise.models.vision.encoder import ImageEncoder, attach_encoder
from turnwise.models.vision.processor import ImageProcessor, images_only
from turnwise.models.vision.tower import batch_tower

VISION_MODELS = frozenset(
    {"gemma3", "idefics3", "llava", "llava_onevision", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "smolvlm"}
)
"""Model types whose features replace the embeddings of image tokens, or are also added to outputs of layers."""
WHOLE_IMAGES = frozenset({"gemma3"})
"""Model types in which the tokens of an image attend to all of it."""
NOT_APPEND_ONLY = {"paligemma": "the tokens of its prompt attend to all later ones, so no turn can follow"}
"""Model types whose contexts cannot grow, and why."""


def check_vision_model(model_type: str, name: str) -> None:
    """Raise UserError for a vision-language model whose images cannot be read."""
    if model_type in VISION_MODELS:
        return
    reason = f": {NOT_APPEND_ONLY[model_type]}" if model_type in NOT_APPEND_ONLY else ""
    raise UserError(
        f'Model "{name}" is a {model_type}, whose images turnwise does not read{reason}. '
        f"Use one of {', '.join(sorted(VISION_MODELS))}."
    )


def attention_by_part(language: str) -> dict[str, str]:
    """Return the attention of the language model, and torch's own for the vision tower."""
    return {"": language, "text_config": language, "vision_config": "sdpa"}


def read_processor(config: Any, source: str, tokenizer: Any, options: dict[str, Any]) -> Any:
    """Read the processor of a model folder or hub name; it shares the tokenizer."""
    processor_class = getattr(transformers, PROCESSOR_MAPPING_NAMES[config.model_type])
    processor = images_only(processor_class).from_pretrained(source, **options)
    processor.tokenizer = tokenizer
    return processor


def equip_model(model: Any, processor: Any) -> None:
    """Let the model read images by their hashes, and never sample the tokens that stand for images and videos."""
    batch_tower(model)
    config, text = model.config, model.config.get_text_config()
    rotary: dict[str, Any] = text.rope_parameters or {}
    merge_size = config.vision_config.spatial_merge_size if "mrope_section" in rotary else None
    images = ImageProcessor(processor, config.image_token_id)
    whole_images = config.model_type in WHOLE_IMAGES
    attach_encoder(model, ImageEncoder(images, merge_size, whole_images=whole_images))
    special = (config.image_token_id, getattr(config, "video_token_id", None))
    mask_output(model, [token for token in special if token is not None and token < text.vocab_size])
