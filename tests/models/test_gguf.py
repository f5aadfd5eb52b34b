from pathlib import Path

import pytest
import torch

from gguf_for_tests import STOP, TEMPLATE, small_llama, write_gguf
from turnwise.core.errors import UserError
from turnwise.models.loading import pretrained
from turnwise.models.loading.load import load_model
from turnwise.models.loading.save import save_model


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf(small_llama(), file)
    return file


def test_read_gguf_gives_the_same_logits_and_a_tokenizer(file: Path) -> None:
    loaded = load_model(str(file))
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.allclose(loaded.model(ids).logits, small_llama()(ids).logits, atol=1e-5)
    assert loaded.stop_ids == (STOP,)
    assert loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer.encode("abb")) == ["ab", "b"]
    assert loaded.tokenizer.chat_template == TEMPLATE


def test_model_from_gguf_can_be_trained_and_saved(file: Path, tmp_path: Path) -> None:
    loaded = load_model(str(file))
    loaded.model(torch.arange(9)[None]).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in loaded.model.parameters())
    save_model(loaded.model, loaded.tokenizer, tmp_path / "plain")
    again = load_model(str(tmp_path / "plain")).model.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in loaded.model.state_dict().items())


def test_read_gguf_prints_nothing(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(str(file))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("size", [0, 3, 40, 2000, -4000])
def test_read_gguf_reports_a_damaged_file_in_one_line(file: Path, tmp_path: Path, size: int) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(file.read_bytes()[:size])
    with pytest.raises(UserError) as caught:
        load_model(str(damaged))
    assert "damaged.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_read_gguf_names_missing_packages(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs gguf and accelerate: run `pip install 'turnwise\[gguf\]'`"):
        load_model(str(file))
