"""smollm2-135m-vision, built from a small random Llama in place of SmolLM2."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from runs_for_tests import small
from turnwise.config.schema import Config
from turnwise.core.images import find_images
from turnwise.core.messages import ImagePart, Message
from turnwise.envs.registry import load_spec
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading import smollm2_vision
from turnwise.models.loading.catalogue import SMOLLM2_VISION
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.loading.tiny import tiny_config, tiny_tokenizer
from turnwise.models.memory.shapes import load_config
from turnwise.models.vision.encoder import image_encoder, vision_parameters
from turnwise.models.vision.processor import decode_image
from turnwise.render.renderer import Renderer
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.load_policy import load_policy
from turnwise.training.describe_boards import Boards
from turnwise.training.warmup import WARMUPS, warm_up
from vision_models_for_tests import png


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LlamaForCausalLM:
    """The model that takes the place of SmolLM2; its layers' norms are not 1."""
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    config = tiny_config()
    config.rms_norm_eps = 1e-3
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "llama")
    tiny_tokenizer().save_pretrained(tmp_path / "llama")
    monkeypatch.setattr(smollm2_vision, "smollm2_folder", lambda: tmp_path / "llama")
    return model


def features(loaded: LoadedModel, image: bytes) -> torch.Tensor:
    encoder = image_encoder(loaded.model)
    assert encoder is not None and loaded.images is not None
    tokens = torch.tensor([token for token in loaded.images.ids(image) if token < 0])
    with torch.no_grad():
        return encoder.features(loaded.model.base_model, tokens)


def test_vision_model_computes_the_logits_of_its_llama_on_text(llama: LlamaForCausalLM) -> None:
    loaded = load_model(SMOLLM2_VISION)
    ids = torch.randint(0, 256, (1, 20))
    with torch.no_grad():
        found, expected = loaded.model(input_ids=ids).logits, llama(input_ids=ids).logits
    torch.testing.assert_close(found[..., :-1], expected, atol=1e-5, rtol=1e-5)


def test_size_of_the_vision_model_is_known_without_a_download() -> None:
    config = load_config(SMOLLM2_VISION)
    assert (config.text_config.hidden_size, config.text_config.vocab_size) == (576, 49153)
    assert config.vision_config.patch_size == 14


def test_vision_model_reads_one_token_per_cell(llama: LlamaForCausalLM) -> None:
    loaded = load_model(SMOLLM2_VISION)
    renderer = Renderer(loaded.tokenizer, loaded.stop_ids, images=loaded.images)
    ids = renderer.start([Message(role="user", parts=(ImagePart(data=png(3 * 28, 2 * 28)),))])
    assert [span.end - span.start for span in find_images(ids)] == [6]
    size = llama.get_input_embeddings().weight.norm(dim=1).mean()
    assert 0.5 < features(loaded, png(84, 56)).norm(dim=1).mean() / size < 2


def test_vision_model_is_made_once_with_the_same_weights(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    first = features(load_model(SMOLLM2_VISION), png(28, 28))
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    assert torch.equal(first, features(load_model(SMOLLM2_VISION), png(28, 28)))
    (tmp_path / "llama").rename(tmp_path / "gone")  # not read again
    assert torch.equal(first, features(load_model(SMOLLM2_VISION), png(28, 28)))


def lake(tmp_path: Path, **settings: Any) -> Config:
    """A run on frozen lake from pixels."""
    given = {"env__kind": "frozen_lake", "env__params__observation": "image", "model__name": SMOLLM2_VISION}
    return small(tmp_path, **given | settings)


@pytest.fixture
def short_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(WARMUPS[SMOLLM2_VISION], board_steps=2, boards=Boards(per_step=2, max_side=6))
    monkeypatch.setitem(WARMUPS, SMOLLM2_VISION, short)


def load(config: Config) -> tuple[LoadedModel, list[tuple[int, int]]]:
    """Return the loaded policy and the steps that its warm-up showed."""
    shown = list[tuple[int, int]]()
    loaded, _ = load_policy(config, build_environment_mix(config.env, config.agent), lambda *step: shown.append(step))
    return loaded, shown


def test_warm_up_trains_the_patch_encoder_faster_than_the_language_model(
    llama: LlamaForCausalLM, short_warmup: None, tmp_path: Path
) -> None:
    loaded, shown = load(lake(tmp_path, model__warmup_steps=1))
    fresh = load_model(SMOLLM2_VISION)
    assert shown == [(1, 2), (2, 2)]
    changes = {
        name: float((one - other).detach().abs().max())
        for (name, one), other in zip(loaded.model.named_parameters(), fresh.model.parameters(), strict=True)
    }
    seeing = max(change for name, change in changes.items() if ".visual." in name)
    speaking = max(change for name, change in changes.items() if ".visual." not in name)
    assert 5 < seeing / speaking < 20  # learning rates of 1e-3 and 1e-4


def test_warm_up_draws_one_token_per_cell(llama: LlamaForCausalLM, short_warmup: None, tmp_path: Path) -> None:
    loaded = load_model(SMOLLM2_VISION, attn_implementation=ATTENTION)
    assert loaded.images is not None
    spec = load_spec("frozen_lake")
    loaded.images.store.keep_in(tmp_path / "images")
    environments = [(spec, spec.check_params({"observation": "image", "cell_pixels": 8}))]
    warm_up(loaded, environments, steps=1, seed=0, show=lambda done, total: None)
    files = sorted((tmp_path / "images").iterdir())
    assert files and all(side % 28 == 0 for file in files for side in decode_image(file.read_bytes()).size)


def test_warm_up_for_images_is_shared_by_environments(
    llama: LlamaForCausalLM, short_warmup: None, tmp_path: Path
) -> None:
    first, shown = load(lake(tmp_path, model__warmup_steps=1))
    other, again = load(lake(tmp_path, model__warmup_steps=1, env__kind="sokoban"))
    assert shown and not again and first.name == other.name
    from_text, _ = load(lake(tmp_path, model__warmup_steps=1, env__params__observation="text"))
    assert from_text.name == SMOLLM2_VISION


@pytest.mark.parametrize(("setting", "trained"), [(None, True), (False, False)])
def test_patch_encoder_is_trained_after_its_warm_up_unless_set(
    setting: bool | None, trained: bool, llama: LlamaForCausalLM, short_warmup: None, tmp_path: Path
) -> None:
    loaded, _ = load(lake(tmp_path, model__warmup_steps=1, model__train_vision=setting))
    assert {each.requires_grad for each in vision_parameters(loaded.model)} == {trained}
