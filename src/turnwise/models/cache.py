"""Where models are kept that are made or fetched once. Imports neither torch nor transformers."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$TURNWISE_CACHE, or ~/.cache/turnwise."""
    chosen = os.environ.get("TURNWISE_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "turnwise"


def cached_model_folder(key: str) -> Path:
    """Where the model with this key lies once it was made: the folder exists if and only if it is complete."""
    return cache_folder() / "models" / key
