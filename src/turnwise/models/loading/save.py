"""Save models as Hugging Face folders that are either complete or absent."""

from pathlib import Path
from typing import Any

from turnwise.core.errors import UserError
from turnwise.files.disk import atomic_folder
from turnwise.models.loading.pretrained import quiet_transformers
from turnwise.models.vision.encoder import save_processor


def save_model(model: Any, tokenizer: Any, folder: Path | str) -> None:
    """Write a folder that `load_model` and any Hugging Face program can read. Tied weights are stored once."""
    folder = Path(folder)
    if folder.exists():
        raise _exists_error(folder)
    try:
        with atomic_folder(folder) as temporary:
            write_model(model, tokenizer, temporary)
    except FileExistsError as error:
        raise _exists_error(folder) from error


def write_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the model's files into an existing folder. The caller handles incomplete writes."""
    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        save_processor(model, folder)
    mode = next(folder.glob("*config.json")).stat().st_mode
    for file in folder.glob("*.safetensors"):  # safetensors makes them readable for their owner only
        file.chmod(mode)


def _exists_error(folder: Path) -> UserError:
    return UserError(f"{folder} already exists: choose another folder or remove it.")
