"""Contexts with images, for every supported architecture: append-only, and the ids of transformers' processors."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import PaliGemmaProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from turnwise.core.images import find_images
from turnwise.core.messages import ImagePart, Message, TextPart, assistant
from turnwise.core.trajectory import Stop
from turnwise.models.loading.tiny import tiny_vlm_model
from turnwise.models.vision.encoder import image_encoder
from turnwise.models.vision.processor import ImageProcessor, decode_image
from turnwise.render.renderer import Renderer
from vision_models_for_tests import VISION_MODELS, png, tokenizer_with

IMAGES = (png(16, 16), png(40, 24, seed=1), png(8, 32, seed=2))
TEXTS = ("Look: ", "What now?", "Up", "row 1 col 2\nice", "<think>")


PALIGEMMA_CHAT = (
    "{% for m in messages %}{% if m.content is string %}{% set parts = [{'type': 'text', 'text': m.content}] %}"
    "{% else %}{% set parts = m.content %}{% endif %}"
    "{% for p in parts if p.type == 'image' %}IMAGE{% endfor %}{% if loop.first %}<bos>{% endif %}"
    "{% for p in parts if p.type == 'text' %}{{ p.text }}{% endfor %}"
    "{% if m.role == 'assistant' %}<|end|>{% else %}{{ '\\n' }}{% endif %}{% endfor %}"
)
"""Images, <bos> at the start, text and a line break, as PaliGemma's processor writes a prompt. It has no template."""


def paligemma_processor() -> ImageProcessor:
    """Return the processor of another model whose attention is not causal."""
    tokenizer = tokenizer_with("<bos>", "<image>", marker="<image>", chat=PALIGEMMA_CHAT)
    tokenizer.bos_token, tokenizer.image_token = "<bos>", "<image>"
    tokenizer.image_token_id = tokenizer.convert_tokens_to_ids("<image>")
    pixels = SiglipImageProcessorPil(size={"height": 16, "width": 16})
    pixels.image_seq_length = 4
    return ImageProcessor(PaliGemmaProcessor(pixels, tokenizer), tokenizer.image_token_id)


@cache
def processor_of(name: str) -> ImageProcessor:
    if name == "paligemma":
        return paligemma_processor()
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


APPEND_ONLY = [*VISION_MODELS, "tiny_vlm"]
"""Processors whose ids for a conversation start with those for its beginning; see PaliGemma's below."""
PARTS = st.lists(st.sampled_from([*TEXTS, *range(len(IMAGES))]), min_size=1, max_size=4).filter(
    lambda parts: all(not (isinstance(a, str) and isinstance(b, str)) for a, b in pairwise(parts))
)
"""Parts of an observation; adjacent texts would be one."""
EPISODES = st.lists(PARTS, min_size=1, max_size=3).filter(
    lambda turns: any(isinstance(part, int) for turn in turns for part in turn)
)


@pytest.mark.parametrize("name", APPEND_ONLY)
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


@pytest.mark.parametrize("name", [*APPEND_ONLY, "paligemma"])
@settings(max_examples=15)
@given(parts=PARTS)
def test_every_image_has_its_tokens_once_and_in_order(name: str, parts: list[str | int]) -> None:
    images = processor_of(name)
    spans = find_images(renderer_of(name).start([observation(parts)]))
    expected = [images.store.put(IMAGES[part]) for part in parts if isinstance(part, int)]
    assert [span.hash for span in spans] == expected
    ids = renderer_of(name).start([observation(parts)])
    assert sum(token < 0 for token in ids) == sum(images.process(key).count for key in expected)


@pytest.mark.parametrize("name", [*APPEND_ONLY, "paligemma"])
@settings(max_examples=10)
@given(parts=PARTS, data=st.data())
def test_special_tokens_beside_images_stay_text(name: str, parts: list[str | int], data: st.DataObject) -> None:
    """Also tokens that stand for images or end turns, and tokens whose halves an image separates."""
    renderer, tokenizer = renderer_of(name), processor_of(name).processor.tokenizer
    special = set(tokenizer.get_added_vocab().values())
    word = data.draw(st.sampled_from(sorted(tokenizer.get_added_vocab())))
    cut = data.draw(st.integers(0, len(word)))
    hostile = [part if isinstance(part, int) else word[cut:] + part + word[:cut] for part in [*parts, "end"]]
    harmless = [part if isinstance(part, int) else "x" for part in [*parts, "end"]]

    def tokens(shown: list[str | int], stop: Stop | None) -> list[int]:
        messages = [observation(shown)]
        ids = renderer.start(messages) if stop is None else renderer.extend(messages, stop)
        return [token for token in ids if token < 0 or token in special]

    for stop in (None, Stop.EOS, Stop.LENGTH):
        assert tokens(hostile, stop) == tokens(harmless, stop)


@pytest.mark.parametrize("name", [*APPEND_ONLY, "paligemma"])
@settings(max_examples=8)
@given(turn=PARTS, earlier=EPISODES)
def test_extend_with_images_is_independent_of_earlier_turns(
    name: str, turn: list[str | int], earlier: list[list[str | int]]
) -> None:
    images, renderer = processor_of(name), renderer_of(name)
    renderer.start([observation(earlier[0])])
    for other in earlier[1:]:
        renderer.extend([observation(other)], Stop.EOS)
    fresh = Renderer(images.processor.tokenizer, (images.processor.tokenizer.eos_token_id,), images=images)
    assert renderer.extend([observation(turn)], Stop.EOS) == fresh.extend([observation(turn)], Stop.EOS)


def paligemma(text: str, shown: Sequence[int]) -> Any:
    """Return the output of PaliGemma's processor for a prompt with these images, marked by <image>."""
    images = [decode_image(IMAGES[number]) for number in shown]
    return processor_of("paligemma").processor(text=[text], images=[images], return_tensors="np")


def prompt_of(parts: Sequence[str | int]) -> tuple[str, list[int]]:
    """Return an observation as a prompt of PaliGemma: all images come before the text."""
    shown = [part for part in parts if isinstance(part, int)]
    return "<image>" * len(shown) + "".join(part for part in parts if isinstance(part, str)), shown


WITH_IMAGE = PARTS.filter(lambda parts: any(isinstance(part, int) for part in parts))


@settings(max_examples=15)
@given(first=WITH_IMAGE, second=WITH_IMAGE)
def test_paligemma_turns_have_the_ids_and_pixels_of_its_processor(
    first: list[str | int], second: list[str | int]
) -> None:
    images, renderer = processor_of("paligemma"), renderer_of("paligemma")
    bos = images.processor.tokenizer.bos_token_id
    turns = [renderer.start([observation(first)]), renderer.extend([observation(second)], Stop.EOS)]
    for parts, ids in zip((first, second), turns, strict=True):
        text, shown = prompt_of(parts)
        found = paligemma(text, shown)
        expected = [token for token in found["input_ids"][0].tolist() if token != bos or parts is first]
        assert [images.placeholder_id if token < 0 else token for token in ids] == expected
        pixels = [images.process(span.hash).inputs["pixel_values"] for span in find_images(ids)]
        assert np.array_equal(torch.cat(pixels), found["pixel_values"])


def test_paligemma_processor_moves_bos_behind_the_last_image() -> None:
    """So its own ids for a conversation do not start with those for the first turn, which were sampled from."""
    bos = processor_of("paligemma").processor.tokenizer.bos_token_id
    one = paligemma("<image>Look", [0])["input_ids"][0].tolist()
    two = paligemma("<image>Look\nUp<|end|><image>What now?", [0, 1])["input_ids"][0].tolist()
    assert (one.index(bos), two.count(bos)) == (4, 1)
    assert two[: len(one)] != one and [token for token in one if token != bos] == two[: len(one) - 1]
