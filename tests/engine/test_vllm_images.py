"""Contexts with images as prompts of vLLM, without vLLM. `tests/vllm` runs the real one."""

import asyncio
import copy
from collections.abc import AsyncIterator, Container
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from turnwise.core.errors import UserError
from turnwise.core.images import image_token_id
from turnwise.core.protocols import Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.engine.engines import Vllm
from turnwise.engine.options import EngineOptions
from turnwise.engine.vllm import build
from turnwise.engine.vllm.engine import VllmEngine
from turnwise.engine.vllm.images import LAYOUTS, ImageReader, PromptImage
from turnwise.engine.vllm.requests import TokenChunk, TokenRequest
from turnwise.engine.vllm.weights import FilePublisher, PublishedWeights, Publisher, checkpoint_name
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.loading.lora import LoraPart, LoraSettings, add_lora
from turnwise.models.vision import architectures
from turnwise.models.vision.encoder import vision_names
from turnwise.models.vision.processor import decode_image
from vision_models_for_tests import png, write_vision_model
from visual_talks_for_tests import look, renderer_of

SERVER = Vllm(urls=("http://localhost:1",))
SIZES = ((40, 24), (16, 16), (24, 40), (8, 8))


@pytest.fixture(scope="module", params=list(LAYOUTS))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = write_vision_model(request.param, tmp_path_factory.mktemp("vision") / request.param)
    return load_model(str(folder))


def restore(prompt: tuple[int, ...], images: tuple[PromptImage, ...]) -> list[int]:
    """Return the context that a prompt was made of."""
    ids = list(prompt)
    for image in images:
        places = [image.start + index for index, has in enumerate(image.has_feature) if has]
        for index, place in enumerate(places):
            ids[place] = image_token_id(image.hash, index)
    return ids


@given(
    turns=st.lists(
        st.lists(st.tuples(st.sampled_from(SIZES), st.integers(0, 2)), min_size=0, max_size=3), min_size=1, max_size=3
    )
)
def test_prompt_and_images_determine_the_context(loaded: LoadedModel, turns: Any) -> None:
    ids: list[int] = []
    renderer = renderer_of(loaded)
    for shown in turns:
        ids += renderer.start([look(*(png(*size, seed=seed) for size, seed in shown))])
    prompt, images = ImageReader(loaded.model).read(ids)
    assert restore(prompt, images) == ids
    assert len(images) == sum(map(len, turns))
    placeholder = loaded.images.placeholder_id
    vocabulary = range(loaded.model.config.get_text_config().vocab_size)
    assert all(token in vocabulary for token in prompt) or placeholder not in vocabulary
    assert prompt.count(placeholder) == sum(sum(image.has_feature) for image in images)


def test_inputs_of_an_image_are_arranged_for_batches(loaded: LoadedModel) -> None:
    """Stacked inputs have one entry per image; joined ones all of its patches or tiles."""
    ids = renderer_of(loaded).start([look(png(40, 24))])
    _, (image,) = ImageReader(loaded.model).read(ids)
    computed = loaded.images.process(image.hash).inputs
    for name, each in image.inputs.items():
        if each.stacked:
            assert len(each.value) == 1
        else:
            assert each.value.numel() == loaded.images.expand(computed[name]).numel() and len(each.value) > 1
    if "num_patches" in image.inputs:
        assert image.inputs["num_patches"].value.tolist() == [len(image.inputs["pixel_values"].value)]
    if "image_grid_thw" in image.inputs:
        assert image.inputs["image_grid_thw"].value.prod() == len(image.inputs["pixel_values"].value)


class Recorder:
    """A replica that keeps its requests and samples two tokens."""

    name = "recorder"

    def __init__(self) -> None:
        self.requests: list[TokenRequest] = []

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        self.requests.append(request)
        yield TokenChunk(ids=(5, 6), logprobs=(-1.0, -2.0), finished=True)

    async def start(self) -> None: ...
    async def load(self, weights: Any) -> None: ...
    async def abort(self, request: TokenRequest) -> None: ...
    async def sleep(self) -> None: ...
    async def close(self) -> None: ...


def test_requests_carry_the_images_of_all_turns_and_mask_their_tokens(loaded: LoadedModel) -> None:
    renderer, replica = renderer_of(loaded), Recorder()
    engine = VllmEngine(
        loaded.model,
        [replica],
        FilePublisher(loaded.model),
        stop_ids=[],
        decode=renderer.decode,
        images=ImageReader(loaded.model),
    )
    contexts = [renderer.start([look(png(40, 24))]), renderer.start([look(png(16, 16), png(8, 8))])]

    async def play() -> None:
        async with engine.open(EpisodeKey(run_seed=0, round=0, task=Task(env="look", seed=1), member=0)) as session:
            for context in contexts:
                await session.generate(context, Sampling(max_tokens=2))

    asyncio.run(play())
    first, second = replica.requests
    assert restore(first.prompt, first.images) == contexts[0]
    assert restore(second.prompt, second.images) == [*contexts[0], 5, 6, *contexts[1]]
    masked = loaded.model.get_output_embeddings().never_sampled.tolist()
    assert loaded.images.placeholder_id in masked
    assert first.params()["logit_bias"] == dict.fromkeys(masked, -1e9)


def test_text_only_requests_have_no_mask() -> None:
    request = TokenRequest(id="a", prompt=(1,), sampling=Sampling(max_tokens=1), stop_ids=(), seed=0, version=0)
    assert request.params()["logit_bias"] is None


def build_for_servers(loaded: LoadedModel) -> None:
    SERVER.build(loaded.model, renderer_of(loaded), EngineOptions(slots=1, max_tokens=64))


def test_servers_refuse_models_that_read_images(loaded: LoadedModel) -> None:
    with pytest.raises(UserError, match=r"servers of engine\.urls read text only, and this model reads images"):
        build_for_servers(loaded)


def test_tiny_vlm_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="vLLM lacks the rotary positions of tiny_vlm"):
        build_for_servers(load_model("tiny_vlm"))


@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_the_processor(loaded: LoadedModel, size: tuple[int, int]) -> None:
    """Also of images that are kept as bytes."""
    data = png(*size)
    _, (image,) = ImageReader(loaded.model).read(renderer_of(loaded).start([look(data)]))
    processor = loaded.images.processor
    own = processor.image_processor([decode_image(data)], return_tensors="pt", **loaded.images._settings)
    found = image.inputs["pixel_values"].value
    torch.testing.assert_close(found, own["pixel_values"].reshape(found.shape))


def test_layouts_cover_every_vision_model() -> None:
    assert LAYOUTS.keys() == architectures.VISION_MODELS - architectures.WHOLE_IMAGES


def test_gemma3_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not read images of a gemma3.*Choose engine native"):
        build_for_servers(load_model(str(write_vision_model("gemma3", tmp_path / "model"))))


def test_qwen3_vl_is_refused_without_the_setting_that_vllm_reads(tmp_path: Path) -> None:
    model = load_model(str(write_vision_model("qwen3_vl", tmp_path / "model"))).model
    ImageReader(model)
    del model.config.get_text_config().rope_parameters["mrope_interleaved"]
    with pytest.raises(UserError, match="Set mrope_interleaved in the rope_parameters"):
        ImageReader(model)


def publisher_of(model: Any, folder: Path) -> Publisher:
    return build._publisher(model, Vllm(weights_folder=str(folder)))


def published_tensors(published: PublishedWeights, *, has_frozen: bool = False) -> dict[str, torch.Tensor]:
    files = published.update_info(has_frozen=has_frozen).values()
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@torch.no_grad()
def change(model: Any, names: Container[str]) -> None:
    for name, parameter in model.named_parameters():
        if name in names:
            parameter += 1.0


def assert_published(published: PublishedWeights, model: Any, **options: bool) -> None:
    """All weights are those of the model; with `has_frozen`, those of the tower are left out."""
    expected = {checkpoint_name(name): each for name, each in model.named_parameters()}
    if options.get("has_frozen"):
        expected = {
            name: each for name, each in expected.items() if name not in map(checkpoint_name, vision_names(model))
        }
    found = published_tensors(published, **options)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_frozen_vision_tower_is_published_once(loaded: LoadedModel, tmp_path: Path) -> None:
    model = copy.deepcopy(loaded.model)
    tower = vision_names(model)
    language = {name for name, _ in model.named_parameters()} - tower
    assert tower and language
    publisher = publisher_of(model, tmp_path)
    first = publisher.write(1, model)
    assert_published(first, model)
    publisher.keep(first)
    complete = publisher.published_bytes
    assert complete == sum(file.stat().st_size for file in tmp_path.glob("*/*"))
    change(model, language)
    second = publisher.write(2, model)
    assert publisher.published_bytes == complete + sum(file.stat().st_size for file in tmp_path.glob("*/version-2.*"))
    assert second.frozen_part == first.frozen_part is not None
    assert_published(second, model)
    assert_published(second, model, has_frozen=True)
    publisher.keep(second)
    assert sorted(file.name for file in tmp_path.glob("*/*")) == ["frozen-1.safetensors", "version-2.safetensors"]
    change(model, tower)
    third = publisher.write(3, model)
    assert third.frozen_part not in (None, second.frozen_part), "a checkpoint was loaded, for example"
    assert_published(third, model)
    publisher.keep(third)
    assert sorted(file.name for file in tmp_path.glob("*/*")) == ["frozen-2.safetensors", "version-3.safetensors"]


def test_trained_vision_tower_is_published_with_every_version(tmp_path: Path) -> None:
    folder = write_vision_model("qwen2_vl", tmp_path / "model")
    model = load_model(str(folder), train_vision=True).model
    publisher = publisher_of(model, tmp_path)
    for version in (1, 2):
        change(model, vision_names(model))
        published = publisher.write(version, model)
        assert published.frozen_part is None
        assert_published(published, model)


def test_vision_tower_from_another_process_is_published_if_it_is_new(tmp_path: Path) -> None:
    """Tensors of learner ranks do not say whether they are trained: those of a frozen tower stay the same objects."""
    model = load_model(str(write_vision_model("qwen2_vl", tmp_path / "model"))).model.requires_grad_(False)
    publisher, parts = publisher_of(model, tmp_path), []
    frozen = {name: each.clone() for name, each in model.named_parameters() if name in vision_names(model)}
    for new in (frozen, {}, {name: each + 1.0 for name, each in frozen.items()}):
        frozen = frozen | new
        others = {name: each.clone() for name, each in model.named_parameters() if name not in frozen}
        published = publisher.write(1, SimpleNamespace(named_parameters=(frozen | others).items))
        parts.append(published.frozen_part)
        tensors = published_tensors(published)
        assert all(torch.equal(tensors[name], each) for name, each in (frozen | others).items())
    assert parts == [1, 1, 2]


@pytest.mark.parametrize("part", ["language", "vision", "both"])
@pytest.mark.parametrize("remote", [False, True])
def test_adapter_of_a_vision_model_is_published_merged(part: LoraPart, remote: bool, tmp_path: Path) -> None:
    model = load_model(str(write_vision_model("qwen2_vl", tmp_path / "model"))).model
    base = {name: each.clone() for name, each in model.named_parameters()}
    add_lora(model, "base", LoraSettings(rank=2, alpha=4.0, targets=(), seed=0, part=part))
    publisher = publisher_of(model, tmp_path)
    first = publisher.write(1, model)
    publisher.keep(first)
    adapted = {name for name, _ in model.named_parameters() if ".lora_B." in name}
    change(model, adapted)
    weights = {name: each.detach().clone() for name, each in model.named_parameters()}
    published = publisher.write(2, SimpleNamespace(named_parameters=weights.items) if remote else model)
    assert published.adapter is None
    has_frozen = published.frozen_part is not None and published.frozen_part == first.frozen_part
    assert has_frozen == (part == "language" and not remote)
    found = published_tensors(published)
    assert found.keys() == base.keys()
    changed = {name for name in base if not torch.equal(found[name], base[name])}
    assert changed == {f"{name.partition('.lora_B.')[0]}.weight" for name in adapted}
    assert changed <= published_tensors(published, has_frozen=has_frozen).keys(), "what a running engine is sent"


@pytest.mark.parametrize("level", ["", "vision_model."])
def test_parameters_are_published_by_their_names_in_checkpoints(level: str) -> None:
    assert checkpoint_name(f"model.vision_tower.{level}embeddings.x") == "model.vision_tower.vision_model.embeddings.x"
    assert checkpoint_name(f"model.language_model.{level}x") == f"model.language_model.{level}x"
