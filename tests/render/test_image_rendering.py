"""Contexts with images, for every supported architecture: append-only, and the ids of transformers' processors."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import Gemma3Processor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from turnwise.core.images import find_images
from turnwise.core.messages import ImagePart, Message, TextPart, assistant
from turnwise.core.trajectory import Stop
from turnwise.models.loading.tiny_vlm import tiny_vlm_model
from turnwise.models.vision.encoder import image_encoder
from turnwise.models.vision.processor import ImageProcessor, decode_image
from turnwise.render.renderer import Renderer
from vision_models_for_tests import VISION_MODELS, png, tokenizer_with

IMAGES = (png(16, 16), png(40, 24, seed=1), png(8, 32, seed=2))
TEXTS = ("Look: ", "What now?", "Up", "row 1 col 2\nice", "<think>")


def gemma3_processor() -> ImageProcessor:
    """Return the processor of a model whose images are rendered, though its attention is not causal."""
    tokenizer = tokenizer_with("<boi>", "<image>", "<eoi>", marker="<boi>")
    tokenizer.boi_token, tokenizer.image_token, tokenizer.eoi_token = "<boi>", "<image>", "<eoi>"
    tokenizer.boi_token_id = tokenizer.convert_tokens_to_ids("<boi>")
    tokenizer.image_token_id = tokenizer.convert_tokens_to_ids("<image>")
    pixels = Gemma3ImageProcessorPil(size={"height": 16, "width": 16})
    return ImageProcessor(Gemma3Processor(pixels, tokenizer, image_seq_length=4), tokenizer.image_token_id)


@cache
def processor_of(name: str) -> ImageProcessor:
    if name == "gemma3":
        return gemma3_processor()
    if name == "tiny_vlm":
        encoder = image_encoder(tiny_vlm_model())
        assert encoder is not None
        return encoder.processor
    model, processor = VISION_MODELS[name]()
    return ImageProcessor(processor, model.config.image_token_id)


@cache
def renderer_of(name: str) -> Renderer:
    images = processor_of(name)
    return Renderer(images.processor.tokenizer, (images.processor.tokenizer.eos_token_id,), images=images)


def observation(parts: Sequence[str | int]) -> Message:
    """Return a user message of texts and images, given by their index."""
    return Message(
        role="user",
        parts=tuple(TextPart(text=each) if isinstance(each, str) else ImagePart(data=IMAGES[each]) for each in parts),
    )


def processed(name: str, messages: Sequence[Message]) -> list[int]:
    """Return the ids that the processor computes for the whole conversation at once."""
    images = processor_of(name)
    content = [
        {
            "role": message.role,
            "content": [
                {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
                for part in message.parts
            ],
        }
        for message in messages
    ]
    text = images.processor.tokenizer.apply_chat_template(content, tokenize=False, add_generation_prompt=True)
    shown: list[Any] = [decode_image(part.data) for message in messages for part in message.images]
    return list(images.processor(text=[text], images=[shown], add_special_tokens=False)["input_ids"][0])


ALL = pytest.mark.parametrize("name", [*VISION_MODELS, "tiny_vlm", "gemma3"])
PARTS = st.lists(st.sampled_from([*TEXTS, *range(len(IMAGES))]), min_size=1, max_size=4).filter(
    lambda parts: all(not (isinstance(a, str) and isinstance(b, str)) for a, b in pairwise(parts))
)
"""Parts of an observation; adjacent texts would be one."""
EPISODES = st.lists(PARTS, min_size=1, max_size=3).filter(
    lambda turns: any(isinstance(part, int) for turn in turns for part in turn)
)


@ALL
@settings(max_examples=15)
@given(turns=EPISODES)
def test_extended_contexts_have_the_ids_of_the_processor(name: str, turns: list[list[str | int]]) -> None:
    if name == "llava_onevision":  # its processor tiles an image only if it is the only one
        assume(sum(isinstance(part, int) for turn in turns for part in turn) == 1)
    renderer, messages = renderer_of(name), [observation(turns[0])]
    ids = renderer.start(messages)
    for turn in turns[1:]:
        messages += [assistant("Down"), observation(turn)]
        ids = [*ids, *renderer.answer("Down"), *renderer.extend(messages[-1:], Stop.EOS)]
    placeholder = processor_of(name).placeholder_id
    assert [placeholder if token < 0 else token for token in ids] == processed(name, messages)


@ALL
@settings(max_examples=15)
@given(parts=PARTS)
def test_every_image_has_its_tokens_once_and_in_order(name: str, parts: list[str | int]) -> None:
    images = processor_of(name)
    spans = find_images(renderer_of(name).start([observation(parts)]))
    expected = [images.store.put(IMAGES[part]) for part in parts if isinstance(part, int)]
    assert [span.hash for span in spans] == expected
    ids = renderer_of(name).start([observation(parts)])
    assert sum(token < 0 for token in ids) == sum(images.process(key).count for key in expected)
