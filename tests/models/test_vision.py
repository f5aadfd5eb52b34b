"""Images in models: the same ids and logits as transformers, equal log-probabilities in engine and learner."""

import asyncio
import json
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from talks_for_tests import key
from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.images import find_images
from turnwise.core.messages import system
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.trajectory import Stop
from turnwise.data.packing import pack, unpack
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.forward import packed_logits
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.loading.lora import LoraSettings, add_lora
from turnwise.models.loading.save import save_model
from turnwise.models.memory.plan import PAGE
from turnwise.models.vision import processor
from turnwise.models.vision.encoder import EXACT_BATCH, ImageEncoder, image_encoder, vision_parameters
from turnwise.models.vision.patch_encoder import MERGE
from turnwise.models.vision.processor import ProcessedImage, decode_image
from turnwise.training.learner import token_logprobs
from vision_models_for_tests import VISION_MODELS, png, write_vision_model
from visual_talks_for_tests import (
    WIDE,
    assert_agrees_with_the_learner,
    engine_of,
    look,
    play_all,
    renderer_of,
    sample_of,
)

TINY_VLM = "tiny_vlm"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("vision")


def load(name: str, folders: Path, **settings: Any) -> LoadedModel:
    if name == TINY_VLM:
        return load_model(TINY_VLM, attn_implementation=ATTENTION, **settings)
    folder = folders / name
    if not folder.exists():
        write_vision_model(name, folder)
    return load_model(str(folder), attn_implementation=ATTENTION, **settings)


ALL = pytest.mark.parametrize("name", [*VISION_MODELS, TINY_VLM])


@ALL
def test_rendered_ids_match_the_processor(name: str, folders: Path) -> None:
    loaded = load(name, folders)
    assert loaded.images is not None
    ids = renderer_of(loaded).start([system("Play."), look(WIDE)])
    content = [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "What now?"}]
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Play."}]},
        {"role": "user", "content": content},
    ]
    text = loaded.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    processor = loaded.images.processor
    expected = processor(text=[text], images=[[decode_image(WIDE)]], add_special_tokens=False)["input_ids"][0]
    assert [loaded.images.placeholder_id if token < 0 else token for token in ids] == list(expected)
    assert len(find_images(ids)) == 1


@ALL
def test_pickled_model_reads_images_of_its_own_store(name: str, folders: Path) -> None:
    loaded = load(name, folders)
    copied = pickle.loads(pickle.dumps(loaded.model))
    encoder = image_encoder(copied)
    assert loaded.images is not None and encoder is not None
    ids = [*loaded.images.ids(WIDE), 5, 6]
    with pytest.raises(UserError, match="not in the store"):
        encoder.processor.process(find_images(ids)[0].hash)
    assert encoder.processor.ids(WIDE) == loaded.images.ids(WIDE)
    batch = pack([sample_of(ids, 1)])
    first, second = (packed_logits(each, batch, batch.sources)[0] for each in (loaded.model, copied))
    assert torch.equal(first, second)


@ALL
def test_packed_logits_match_transformers(name: str, folders: Path) -> None:
    loaded = load(name, folders)
    renderer = renderer_of(loaded)
    rows = [
        [*renderer.start([system("Play."), look(WIDE)]), *renderer.answer(text)] for text in ("up", "down, then left")
    ]
    rows.append([*renderer.start([system("Play."), look(png(40, 24, seed=5))]), *renderer.answer("up")])
    samples = [sample_of(row, 3) for row in rows]
    batch = pack(samples)
    logits, _ = packed_logits(loaded.model, batch, batch.sources)
    for ids, image, found in zip(rows, (WIDE, WIDE, png(40, 24, seed=5)), unpack(batch, logits), strict=True):
        torch.testing.assert_close(found, own_logits(loaded, ids, image)[-4:-1], atol=2e-4, rtol=1e-3)
    assert len(batch.ids) < sum(map(len, rows))  # the prompt that two samples share is computed once


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", TINY_VLM])
def test_images_kept_as_bytes_expand_to_the_pixels_of_the_processor(name: str, folders: Path) -> None:
    images = load(name, folders).images
    assert images is not None
    own = images.processor.image_processor
    side = own.patch_size * own.merge_size
    fitting, resized = png(4 * side, 3 * side), png(4 * side + 3, 3 * side)
    for data, dtype in ((fitting, torch.uint8), (resized, torch.float32)):
        found, expected = images.process(images.store.put(data)).inputs, own([decode_image(data)], return_tensors="pt")
        assert found["pixel_values"].dtype == dtype
        assert torch.equal(images.expand(found["pixel_values"]), expected["pixel_values"])
        assert torch.equal(found["image_grid_thw"], expected["image_grid_thw"])


def own_logits(loaded: LoadedModel, ids: list[int], image: bytes) -> Tensor:
    """Return the logits of transformers' own forward, with pixels."""
    assert loaded.images is not None
    placeholder = loaded.images.placeholder_id
    found = loaded.images.processor(
        text=[loaded.images.marker], images=[[decode_image(image)]], add_special_tokens=False, return_tensors="pt"
    )
    other = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
    pixels = {name: value for name, value in found.items() if name not in other}
    real = torch.tensor([[placeholder if token < 0 else token for token in ids]])
    encoder, kinds = image_encoder(loaded.model), (real == placeholder).int()
    if encoder.merge_size is not None:  # type: ignore[union-attr]
        pixels["mm_token_type_ids"] = kinds
    elif encoder.whole_images:  # type: ignore[union-attr]
        pixels["token_type_ids"] = kinds
    loaded.model.set_attn_implementation("sdpa")
    try:
        with torch.no_grad():
            return loaded.model(input_ids=real, **pixels).logits[0]
    finally:
        loaded.model.set_attn_implementation({"": ATTENTION, "text_config": ATTENTION, "vision_config": "sdpa"})


@pytest.mark.parametrize("paged", [False, True], ids=["slots", "paged"])
@ALL
def test_engine_and_learner_logprobs_agree_with_images(name: str, paged: bool, folders: Path) -> None:
    loaded = load(name, folders)
    renderer = renderer_of(loaded)
    played = asyncio.run(play_all(engine_of(loaded, renderer, paged=paged), renderer))
    assert_agrees_with_the_learner(loaded, played)
    assert played[0][1] != played[2][1]  # the members see different first images


def test_paged_engine_places_each_token_once(monkeypatch: pytest.MonkeyPatch, folders: Path) -> None:
    loaded = load("qwen2_vl", folders)
    renderer, encoder = renderer_of(loaded), image_encoder(loaded.model)
    assert encoder is not None
    placed, own = list[int](), encoder.place
    monkeypatch.setattr(encoder, "place", lambda ids, start: placed.append(len(ids)) or own(ids, start))
    played = asyncio.run(play_all(engine_of(loaded, renderer, paged=True), renderer))
    context = sum(int((~sample.mask).sum()) for sample, _ in played)
    # The token that was sampled last enters the cache with the next turn, of which each episode has two more.
    assert sum(placed) == context + 2 * len(played)


def test_paged_engine_restores_evicted_sessions_with_images(folders: Path) -> None:
    loaded = load("qwen2_vl", folders)
    renderer = renderer_of(loaded)
    engine = engine_of(loaded, renderer, paged=True, pages=5)
    played = asyncio.run(play_all(engine, renderer))
    assert engine.stats().counts["evicted_tokens"] > 0
    assert_agrees_with_the_learner(loaded, played)


def test_evicted_session_that_shares_part_of_an_image_places_all_of_it(folders: Path) -> None:
    """A page ends inside the second turn's image, and another session with the same context has filled that page."""
    loaded = load("qwen2_vl", folders)
    renderer = renderer_of(loaded)
    engine = engine_of(loaded, renderer, paged=True)
    image, greedy = png(64, 64, seed=4), Sampling(max_tokens=4, temperature=0.0)
    opening = renderer.start([system("Play."), look(WIDE)])

    async def scenario() -> tuple[list[Completion], list[Completion], list[int]]:
        async with engine.open(key(1)) as first, engine.open(key(2)) as second:
            before = [await each.generate(opening, greedy) for each in (first, second)]
            extension = renderer.extend([look(image)], before[0].stop)
            for _ in before:
                assert engine._runner._evict()  # type: ignore[union-attr]
            return before, [await each.generate(extension, greedy) for each in (first, second)], extension

    before, after, extension = asyncio.run(scenario())
    context = [*opening, *before[0].ids, *extension]
    (span,) = find_images(extension)
    start = len(context) - len(extension) + span.start
    assert any(start < page < start + span.end - span.start for page in range(PAGE, len(context), PAGE))
    assert engine.stats().counts["shared_tokens"] > len(opening)
    assert after[1].ids == after[0].ids
    torch.testing.assert_close(torch.tensor(after[1].logprobs), torch.tensor(after[0].logprobs))
    with torch.no_grad():
        found, *_ = token_logprobs(loaded.model, pack([sample_of([*context, *after[1].ids], len(after[1].ids))]))
    torch.testing.assert_close(torch.tensor(after[1].logprobs), found, atol=2e-4, rtol=1e-3)


def test_engine_computes_the_features_of_an_image_once(monkeypatch: pytest.MonkeyPatch, folders: Path) -> None:
    loaded = load("qwen2_vl", folders)
    renderer, seen = renderer_of(loaded), list[int]()
    trunk = loaded.model.base_model
    own = trunk.get_image_features

    def counted(pixel_values: Tensor, image_grid_thw: Tensor, **options: Any) -> Any:
        seen.append(len(image_grid_thw))
        return own(pixel_values, image_grid_thw, **options)

    monkeypatch.setattr(trunk, "get_image_features", counted)
    played = asyncio.run(play_all(engine_of(loaded, renderer), renderer))
    token_logprobs(loaded.model, pack([sample for sample, _ in played]))
    assert seen == [1] * 5  # five different images, in the engine and the learner together


@ALL
def test_features_of_a_batch_match_those_of_single_images(
    name: str, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, or if it is trained, the vision tower runs on batches of images."""
    loaded = load(name, folders)
    trunk, processor = loaded.model.base_model, loaded.images
    images = [WIDE, png(24, 40, seed=2), png(16, 16), png(40, 24, seed=4), png(8, 8), png(16, 16, seed=5)]
    tokens = torch.tensor([token for image in images for token in processor.ids(image) if token < 0])
    with torch.no_grad():
        expected = ImageEncoder(processor).features(trunk, tokens)
        for parameter in vision_parameters(loaded.model):
            parameter.requires_grad_(True)
        sizes, encoder = list[int](), ImageEncoder(processor)
        forward = encoder._forward
        monkeypatch.setattr(
            encoder,
            "_forward",
            lambda trunk, images: sizes.append(len(images)) or forward(trunk, images),
        )
        found = encoder.features(trunk, tokens)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert sum(sizes) == len(images) and max(sizes) > 1


@pytest.mark.parametrize("name", ["qwen2_vl", TINY_VLM])
def test_features_of_a_frozen_tower_do_not_depend_on_the_batch(name: str, folders: Path) -> None:
    loaded = load(name, folders)
    trunk, processor = loaded.model.base_model, loaded.images
    images = [png(32, 32, seed=seed) for seed in range(EXACT_BATCH + 2)]
    tokens = [torch.tensor([token for token in processor.ids(image) if token < 0]) for image in images]
    with torch.no_grad():
        found = ImageEncoder(processor, MERGE).features(trunk, torch.cat(tokens))
        alone = [ImageEncoder(processor, MERGE).features(trunk, each) for each in tokens]
    assert torch.equal(found, torch.cat(alone))


@pytest.mark.parametrize("is_exact", [True, False])
def test_frozen_tower_runs_on_batches_if_they_are_exact(
    is_exact: bool, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On machines where they are not, the last image of a batch has other features."""
    loaded = load(TINY_VLM, folders)
    processor, encoder, sizes = loaded.images, ImageEncoder(loaded.images, MERGE), list[int]()

    def forward(trunk: Any, images: list[ProcessedImage]) -> list[Tensor]:
        sizes.append(len(images))
        tables = [image.inputs["pixel_values"].float().mean().expand(image.count, 8) for image in images]
        return tables if is_exact or len(images) == 1 else [*tables[:-1], tables[-1] + 1]

    monkeypatch.setattr(encoder, "_forward", forward)
    square, wide = ([png(*size, seed=seed) for seed in range(EXACT_BATCH + 2)] for size in ((32, 32), (64, 16)))
    pixels = torch.stack([processor.process(processor.store.put(each)).inputs["pixel_values"] for each in square])

    def features(images: list[bytes]) -> Tensor:
        ids = [token for image in images for token in processor.ids(image) if token < 0]
        with torch.no_grad():
            return encoder.features(loaded.model.base_model, torch.tensor(ids))

    found = features([*square, *wide[:2]])
    assert torch.equal(found[: 16 * len(square) : 16, 0], pixels.float().flatten(1).mean(1))
    check, rest = [1, EXACT_BATCH], [EXACT_BATCH, 1, 1] if is_exact else [1] * (EXACT_BATCH + 2)
    assert Counter(sizes) == Counter([*check, *rest, 1, 1])
    sizes.clear()
    features([png(32, 32, seed=seed) for seed in range(100, 100 + EXACT_BATCH)])
    assert sizes == ([EXACT_BATCH] if is_exact else [1] * EXACT_BATCH)
    sizes.clear()
    features(wide)  # of the same number of patches
    assert sizes[:2] == check
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)  # which may choose other kernels
    sizes.clear()
    features([png(32, 32, seed=seed) for seed in range(200, 200 + EXACT_BATCH)])
    assert sizes[:2] == check


def test_features_follow_a_vision_tower_that_is_trained(folders: Path) -> None:
    loaded = load("llava", folders, train_vision=True)
    tokens = torch.tensor([token for token in loaded.images.ids(WIDE) if token < 0])
    encoder, trunk = image_encoder(loaded.model), loaded.model.base_model
    assert encoder is not None
    with torch.no_grad():
        before = encoder.features(trunk, tokens)
    torch.optim.SGD(loaded.model.parameters(), lr=0.1).step()  # nothing to do yet
    encoder.features(trunk, tokens).square().sum().backward()
    assert all(each.grad is not None for each in trunk.multi_modal_projector.parameters())
    torch.optim.SGD(loaded.model.parameters(), lr=0.1).step()
    with torch.no_grad():
        after = encoder.features(trunk, tokens)
    assert not torch.allclose(before, after)


def test_features_follow_an_adapter_on_the_vision_tower(folders: Path) -> None:
    loaded = load("qwen2_vl", folders)
    add_lora(loaded.model, "qwen2_vl", LoraSettings(rank=2, alpha=4.0, targets=(), seed=0, part="vision"))
    tokens = torch.tensor([token for token in loaded.images.ids(WIDE) if token < 0])
    encoder, trunk = image_encoder(loaded.model), loaded.model.base_model
    assert encoder is not None
    with torch.no_grad():
        before = encoder.features(trunk, tokens)
    encoder.features(trunk, tokens).square().sum().backward()
    assert all(each.grad is not None for each in loaded.model.parameters() if each.requires_grad)
    torch.optim.SGD([each for each in loaded.model.parameters() if each.requires_grad], lr=0.1).step()
    with torch.no_grad():
        assert not torch.allclose(before, encoder.features(trunk, tokens))


def test_vision_tower_is_frozen_by_default(folders: Path) -> None:
    frozen, trained = load("qwen2_vl", folders).model, load("qwen2_vl", folders, train_vision=True).model
    assert vision_parameters(frozen) and not any(each.requires_grad for each in vision_parameters(frozen))
    assert all(each.requires_grad for each in trained.parameters())
    assert frozen.get_input_embeddings().weight.requires_grad


@ALL
def test_image_tokens_are_never_sampled(name: str, folders: Path) -> None:
    loaded = load(name, folders)
    config = loaded.model.config
    vocabulary = range(config.get_text_config().vocab_size)
    found = (config.image_token_id, getattr(config, "video_token_id", None))
    placeholders = [token for token in found if token in vocabulary]
    batch = pack([sample_of(renderer_of(loaded).start([look(WIDE)]), 2)])
    for scale in (100, -1):  # without the mask, the model would choose them, once or the other time
        with torch.no_grad():
            loaded.model.get_output_embeddings().weight[placeholders] *= scale
        logits, _ = packed_logits(loaded.model, batch, batch.sources)
        assert bool((logits.softmax(dim=-1)[:, placeholders] == 0).all())


def test_features_of_tiny_vlm_are_as_large_as_token_embeddings() -> None:
    """Larger ones would drown what the layers add to them, and nothing would be learnt from images."""
    loaded = load_model(TINY_VLM)
    ids = renderer_of(loaded).start([look(png(64, 64))])
    encoder, embeddings = image_encoder(loaded.model), loaded.model.get_input_embeddings().weight
    assert encoder is not None
    with torch.no_grad():
        features = encoder.features(loaded.model.base_model, torch.tensor([each for each in ids if each < 0]))
    assert 0.5 < features.norm(dim=1).mean() / embeddings.norm(dim=1).mean() < 2


def test_saved_vision_model_reads_images_alike(folders: Path, tmp_path: Path) -> None:
    loaded = load(TINY_VLM, folders)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "saved")
    assert (tmp_path / "saved" / "preprocessor_config.json").is_file()  # which others read for images and videos
    again = load_model(str(tmp_path / "saved"), attn_implementation=ATTENTION)
    ids = renderer_of(loaded).start([look(WIDE)])
    assert renderer_of(again).start([look(WIDE)]) == ids
    batch = pack([sample_of(ids, 2)])
    # Not bit for bit: on some processors the last bits depend on where in memory the weights lie.
    torch.testing.assert_close(*(packed_logits(each.model, batch, batch.sources)[0] for each in (loaded, again)))


def test_image_with_too_many_tokens_fails_the_environment(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "MAX_IMAGE_TOKENS", 3)
    images = load(TINY_VLM, folders).images
    assert images is not None
    with pytest.raises(EnvironmentFailure, match="16 x 16 pixels has 4 tokens, more than 3: return smaller images"):
        images.ids(png(16, 16))


def test_damaged_image_fails_the_environment(folders: Path) -> None:
    renderer = renderer_of(load(TINY_VLM, folders))
    for data in (b"", b"no image", WIDE[:60]):
        with pytest.raises(EnvironmentFailure, match="cannot be decoded"):
            renderer.start([look(data)])


@pytest.mark.parametrize(
    ("name", "tokens"), [("qwen2_vl", ["<|vision_start|>", "<|image_pad|>"]), ("gemma3", ["<boi>", "<image>", "<eoi>"])]
)
def test_decode_writes_the_placeholder_once_per_image(name: str, tokens: list[str], folders: Path) -> None:
    renderer = renderer_of(load(name, folders))
    ids = renderer.extend([look(WIDE, WIDE)], Stop.EOS)
    assert [renderer.decode(ids).count(each) for each in tokens] == [2] * len(tokens)
    named = renderer.name_token(min(ids))
    assert named.special and named.text == tokens[1]


def test_image_marker_in_untrusted_text_stays_text(folders: Path) -> None:
    loaded = load("qwen2_vl", folders)
    ids = renderer_of(loaded).start([look(WIDE, text="<|image_pad|>")])
    assert len(find_images(ids)) == 1 and loaded.images.placeholder_id not in ids


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("paligemma", ": the tokens of its prompt attend to all later ones, so no turn can follow. Use one of gemma3"),
        ("aria", ". Use one of gemma3, idefics3"),
    ],
)
def test_unsupported_vision_models_are_refused_with_the_reason(model_type: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(UserError) as refused:
        load_model(str(tmp_path))
    assert f"is a {model_type}, whose images turnwise does not read{reason}" in str(refused.value)
