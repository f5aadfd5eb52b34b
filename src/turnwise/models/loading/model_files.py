"""Check the files of a model before torch and transformers are imported, which takes seconds."""

import json
import struct
from pathlib import Path

from turnwise.core.errors import UserError, not_a_file, read_failure
from turnwise.text.truncation import first_line

ADAPTER_CONFIG = "adapter_config.json"
MODEL_CONFIG = "config.json"
GGUF_HEADER = struct.Struct("<4sIQQ")
"""Magic bytes, version, and the numbers of tensors and of metadata entries."""
GGUF_MAGIC = b"GGUF"
GGUF_VERSIONS = (2, 3)


def is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file()


def check_model_files(path: Path) -> None:
    """Check the start of a .gguf file, or the configuration in the folder of a model or an adapter."""
    if path.suffix.lower() == ".gguf":
        check_gguf(path)
    elif is_adapter(path):
        _check_json(path / ADAPTER_CONFIG)
    else:
        check_model_folder(path)


def check_model_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a model folder. Give one, or a .gguf file.")
    if not (folder / MODEL_CONFIG).is_file():
        fix = "use a folder that save_pretrained or `turnwise export` wrote"
        if (folder / "checkpoints").is_dir():
            fix = f"it is a run folder; `turnwise export {folder} --to FOLDER` writes a model folder"
        raise UserError(f"{folder} is not a model folder, it has no config.json: {fix}")
    _check_json(folder / MODEL_CONFIG)


def _check_json(file: Path) -> None:
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{read_failure(file, error)}. Download or save the model again.") from error
    except ValueError as error:
        problem = first_line(error, 80)
        raise UserError(f"{file} is not valid JSON ({problem}). Download or save the model again.") from error


def check_gguf(file: Path) -> None:
    """Check that a GGUF file is one, by its first bytes."""
    if not file.is_file():
        raise UserError(f"{not_a_file(file)}: pass the path of a .gguf file.")
    try:
        with file.open("rb") as stream:
            start = stream.read(GGUF_HEADER.size)
    except OSError as error:
        raise UserError(f"{read_failure(file, error)}. Make it readable.") from error
    if len(start) == GGUF_HEADER.size:
        magic, version, tensors, entries = GGUF_HEADER.unpack(start)
        if magic == GGUF_MAGIC and version in GGUF_VERSIONS and 0 < tensors < file.stat().st_size > entries:
            return
    raise UserError(f"{file} is not a GGUF file, or is damaged: download it again.")
