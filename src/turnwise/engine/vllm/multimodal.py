"""Prompts with images as vLLM's own types: ids, processed pixels and where they belong. Needs vLLM."""

from typing import Any

import torch
from transformers import BatchFeature
from vllm.inputs import mm_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItem, MultiModalKwargsItems, PlaceholderRange

from turnwise.engine.vllm.images import PromptImage, PromptInput
from turnwise.engine.vllm.requests import TokenRequest

MODALITY = "image"


def image_prompt(request: TokenRequest) -> Any:
    """Return the request's prompt with its images. vLLM keeps their features by content hash."""
    return mm_input(
        prompt_token_ids=list(request.prompt),
        mm_kwargs=MultiModalKwargsItems({MODALITY: [_item(image) for image in request.images]}),
        mm_hashes={MODALITY: [image.hash for image in request.images]},
        mm_placeholders={MODALITY: [_placeholder(image) for image in request.images]},
        cache_salt=request.salt,
    )


def _item(image: PromptImage) -> MultiModalKwargsItem:
    values = BatchFeature({name: prompt_input.value for name, prompt_input in image.inputs.items()})
    fields = {name: _field(prompt_input) for name, prompt_input in image.inputs.items()}
    return MultiModalKwargsItems.from_hf_inputs(values, fields)[MODALITY][0]


def _field(prompt_input: PromptInput) -> MultiModalFieldConfig:
    if prompt_input.stacked:
        return MultiModalFieldConfig.batched(MODALITY, keep_on_cpu=not prompt_input.value.is_floating_point())
    return MultiModalFieldConfig.flat_from_sizes(MODALITY, torch.tensor([len(prompt_input.value)]))


def _placeholder(image: PromptImage) -> PlaceholderRange:
    mask = None if all(image.has_feature) else torch.tensor(image.has_feature)
    return PlaceholderRange(offset=image.start, length=len(image.has_feature), is_embed=mask)
