import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.models.loading.catalogue import (
    CATALOGUE,
    HUB,
    SMOLLM2,
    SMOLLM2_KEY,
    TINY,
    TINY_VLM,
    ModelEntry,
    cache_folder,
    cached_model_folder,
    model_names,
)


def test_catalogue_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from turnwise.models.loading.catalogue import CATALOGUE; [entry.cached for entry in CATALOGUE]; "
        "print([name for name in ('torch', 'transformers', 'tokenizers', 'numpy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_catalogue_names_are_distinct_and_start_with_tiny() -> None:
    assert model_names()[:3] == (TINY, TINY_VLM, SMOLLM2)
    assert len(set(model_names())) == len(CATALOGUE)


def test_cache_folder_follows_the_environment_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.setenv("TURNWISE_CACHE", "~/there")
    assert cache_folder() == Path.home() / "there"
    monkeypatch.delenv("TURNWISE_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "turnwise"


def test_cached_models_can_be_loaded_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    entries = {entry.name: entry for entry in CATALOGUE}
    assert [name for name, entry in entries.items() if entry.cached] == [TINY, TINY_VLM]
    cached_model_folder(SMOLLM2_KEY).mkdir(parents=True)
    assert entries[SMOLLM2].cached


def test_hub_model_is_cached_once_its_config_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    entry = ModelEntry(name="owner/name", parameters="1B", source=HUB, note="")
    snapshot = tmp_path / "hub" / "models--owner--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    assert not entry.cached
    (snapshot / "config.json").write_text("{}")
    assert entry.cached
