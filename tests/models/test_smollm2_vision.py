"""smollm2-135m-vision, built from a small random Llama in place of SmolLM2."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from turnwise.core.images import find_images
from turnwise.core.messages import ImagePart, Message
from turnwise.models.loading import smollm2_vision
from turnwise.models.loading.catalogue import SMOLLM2_VISION
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.loading.tiny import tiny_config, tiny_tokenizer
from turnwise.models.memory.shapes import load_config
from turnwise.models.vision.encoder import image_encoder, vision_parameters
from turnwise.render.renderer import Renderer
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


def test_untrained_patch_encoder_is_trained_unless_set(llama: LlamaForCausalLM) -> None:
    def is_trained(name: str, train_vision: bool | None = None) -> bool:
        return any(each.requires_grad for each in vision_parameters(load_model(name, train_vision=train_vision).model))

    assert is_trained(SMOLLM2_VISION) and not is_trained(SMOLLM2_VISION, False)
    folder = str(smollm2_vision.smollm2_vision_folder())
    assert not is_trained(folder) and is_trained(folder, True)


def test_vision_model_is_made_once_with_the_same_weights(llama: LlamaForCausalLM, tmp_path: Path) -> None:
    first = features(load_model(SMOLLM2_VISION), png(28, 28))
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    assert torch.equal(first, features(load_model(SMOLLM2_VISION), png(28, 28)))
    (tmp_path / "llama").rename(tmp_path / "gone")  # not read again
    assert torch.equal(first, features(load_model(SMOLLM2_VISION), png(28, 28)))
