"""Check this machine: installed packages, hardware, sandbox and folders, each with how to fix what is missing."""

import importlib
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from turnwise.engine.cpu.kernels import CompilationError, load_kernels
from turnwise.models.loading.catalogue import cache_folder
from turnwise.run.machine import GIB, ask_torch, describe_cores, describe_gpus, describe_memory
from turnwise.sandbox.host import sandbox_report

REQUIRED = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic")
OPTIONAL = {
    "gguf": ("models in GGUF files, smollm2-135m", "pip install 'turnwise[gguf]'"),
}
"""Package -> (purpose, how to install it)."""

MIN_DISK = 2 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    name: str
    found: str
    fix: str = ""
    """Advice; empty if nothing is wrong."""
    required: bool = True
    """False: training works without it."""


def check_machine(runs: Path) -> list[Finding]:
    """Return all findings; `runs` is the folder of runs."""
    python = Finding(name="python", found=f"{platform.python_version()} ({sys.executable})")
    folders = [_folder("runs folder", runs), _folder("cache folder", cache_folder())]
    return [python, *map(_package, REQUIRED), *_hardware(), _kernels(), *_sandbox(), *folders, *_optional_packages()]


def _sandbox() -> Iterator[Finding]:
    """Start a sandbox of each kind and report which work."""
    first, *others = sandbox_report()
    fix = "only environments that run code or render SVG need it" if first.startswith("sandbox: none") else ""
    yield Finding(name="sandbox", found=first.removeprefix("sandbox: "), fix=fix, required=False)
    for line in others:
        name, _, found = line.strip().partition(": ")
        yield Finding(name=f"  {name}", found=found)


def _package(name: str) -> Finding:
    """Import the package: it can be installed and broken."""
    try:
        importlib.import_module(name)
        return Finding(name=name, found=version(name))
    except (ImportError, OSError) as error:
        return Finding(name=name, found=f"does not load: {error}", fix=f"pip install --force-reinstall {name}")


def _hardware() -> Iterator[Finding]:
    yield Finding(name="cores", found=describe_cores())
    yield Finding(name="memory", found=describe_memory())
    yield Finding(name="threads", found=ask_torch(lambda torch: f"{torch.get_num_threads()} (system.threads sets it)"))
    yield Finding(name="gpu", found=describe_gpus())


def _kernels() -> Finding:
    try:
        load_kernels()
    except CompilationError as reason:
        found, fix = f"{reason}: episodes on the CPU take longer", "install gcc"
        return Finding(name="kernels", found=found, fix=fix, required=False)
    return Finding(name="kernels", found="compiled for this processor")


def _folder(name: str, folder: Path) -> Finding:
    """Check that files can be created there, or in the nearest parent if the folder does not exist yet."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return Finding(name=name, found=f"{folder}: {reason}", fix=_other_folder(name))
    free = shutil.disk_usage(existing).free
    fix = f"free some space: at least {MIN_DISK / GIB:.0f} GiB are recommended" if free < MIN_DISK else ""
    return Finding(name=name, found=f"{folder}: writable, {free / GIB:.1f} GiB free", fix=fix, required=False)


def _other_folder(name: str) -> str:
    return "choose another record.folder" if name == "runs folder" else "set TURNWISE_CACHE to another folder"


def _optional_packages() -> Iterator[Finding]:
    for package, (purpose, install) in OPTIONAL.items():
        try:
            yield Finding(name=package, found=f"{version(package)}: {purpose}", required=False)
        except PackageNotFoundError:
            yield Finding(name=package, found=f"not installed: {purpose}", fix=install, required=False)
