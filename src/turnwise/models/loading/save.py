"""Models on disk: plain Hugging Face folders that are either complete or not there."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from turnwise.core.errors import UserError
from turnwise.core.protocols import WeightSource
from turnwise.models.loading.pretrained import quiet_transformers


def save_model(model: Any, tokenizer: Any, folder: Path | str) -> None:
    """Writes a folder that `load_model` and any Hugging Face program can read. Tied weights are stored once."""
    folder = Path(folder)
    if folder.exists():
        raise _exists_error(folder)
    try:
        with atomic_folder(folder) as aside:
            write_model(model, tokenizer, aside)
    except FileExistsError as error:
        raise _exists_error(folder) from error


def write_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """The files of a model, into a folder that is there; for callers that take care of half-written ones themselves."""
    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    mode = next(folder.glob("*config.json")).stat().st_mode
    for file in folder.glob("*.safetensors"):  # which safetensors makes readable for their owner alone
        file.chmod(mode)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` to write into; it takes the name `folder` at the end of the block.

    So a process that is killed half-way leaves nothing that could be taken for a model. Where another process was
    faster, its folder stands, this one is dropped and a FileExistsError says so. Other failures to write are
    UserErrors, so only writing belongs into the block.
    """
    aside = folder.parent / f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.partial"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
        yield aside
        _rename(aside, folder)
    except _LostRaceError as error:
        raise FileExistsError(str(folder)) from error
    except (OSError, SafetensorError) as error:
        raise _write_error(folder, error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class _LostRaceError(Exception):
    pass


def _rename(aside: Path, folder: Path) -> None:
    try:
        aside.rename(folder)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _LostRaceError from error
        raise


def _exists_error(folder: Path) -> UserError:
    return UserError(f"{folder} exists: choose another folder, or remove it first")


def _write_error(folder: Path, error: Exception) -> UserError:
    """safetensors reports the operating system's error as text only."""
    number = error.errno if isinstance(error, OSError) else None
    full = (errno.ENOSPC, errno.EDQUOT)
    if number in full or any(f"os error {code}" in str(error) for code in full):
        return UserError(f"no disk space left to write {folder}: free some and run this again")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UserError(f"{folder} cannot be written ({reason}): choose a folder that you can write to")


@torch.no_grad()
def copy_parameters(model: Any, weights: WeightSource) -> None:
    """Copy weights into the model's own parameter storage, which an engine and a learner may share."""
    own, new = dict(model.named_parameters()), dict(weights.named_parameters())
    if own.keys() != new.keys():
        raise ValueError(f"weights differ in names: {sorted(own.keys() ^ new.keys())[:3]}")
    for name, parameter in own.items():
        if parameter is not new[name]:
            parameter.copy_(new[name])
