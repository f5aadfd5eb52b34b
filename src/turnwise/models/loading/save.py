"""Save models as Hugging Face folders that are either complete or absent."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from turnwise.core.errors import UserError
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


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder` that is renamed to `folder` at the end of the block.

    A process that is killed leaves nothing that could be taken for a model. If another process was faster, its folder
    stays and FileExistsError is raised. Other failures to write become UserErrors, so only write in the block.
    """
    temporary = folder.parent / f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.partial"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        _rename(temporary, folder)
    except _LostRaceError as error:
        raise FileExistsError(str(folder)) from error
    except (OSError, SafetensorError) as error:
        raise _write_error(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


class _LostRaceError(Exception):
    pass


def _rename(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _LostRaceError from error
        raise


def _exists_error(folder: Path) -> UserError:
    return UserError(f"{folder} already exists: choose another folder or remove it")


def _write_error(folder: Path, error: Exception) -> UserError:
    """Explain the failure. safetensors reports errors of the operating system as text only."""
    number = error.errno if isinstance(error, OSError) else None
    full = (errno.ENOSPC, errno.EDQUOT)
    if number in full or any(f"os error {code}" in str(error) for code in full):
        return UserError(f"no disk space left to write {folder}: free some space and run this again")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UserError(f"cannot write {folder} ({reason}): choose a folder with write permission")
