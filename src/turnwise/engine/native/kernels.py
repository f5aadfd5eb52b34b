"""A folder of C files, compiled once on this machine for its own processor, and loaded."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.models.loading.catalogue import cache_folder

FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-Wno-psabi")
FLAG_SETS = (("-march=native", "-fopenmp"), ("-march=native",), ())
"""Flags that not every compiler has; the first set that compiles and loads is taken."""
TIMEOUT_S = 120
CPU_INFO = Path("/proc/cpuinfo")
CPU_FEATURE_LINES = ("flags", "Features", "CPU implementer", "CPU part")
"""The lines there that say which instructions a processor has: x86's, then those of ARM."""


class CompilationError(Exception):
    """Says in one line what was missing."""


def compile_library(name: str, folder: Path) -> ctypes.CDLL:
    """All C files of the folder as one library."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", ""), "gcc", "cc", "clang"))), None)
    if compiler is None:
        raise CompilationError("no C compiler on the path")
    _expose_openmp()
    failures = []
    for flags in FLAG_SETS:
        try:
            return ctypes.CDLL(str(_library(name, folder, compiler, flags)))
        except (OSError, subprocess.SubprocessError) as error:
            failures.append(str(getattr(error, "stderr", None) or error).strip())
    raise CompilationError(f"{compiler}: {failures[-1].splitlines()[0]}")


def _library(name: str, sources: Path, compiler: str, flags: tuple[str, ...]) -> Path:
    """The compiled file: made aside and renamed, so that one that exists is whole."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(sources.glob("*.[ch]"))]
    about = "\n".join((*texts, compiler, *FLAGS, *flags, *_cpu_features()))
    folder = cache_folder() / "compiled"
    library = folder / f"{name}-{hashlib.sha256(about.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            # Compiled first and linked then, without the flag for OpenMP, which would bring a second pool of threads
            # beside torch's.
            files = sorted(sources.resolve().glob("*.c"))
            _run(compiler, *FLAGS, *flags, "-c", *map(str, files), folder=aside)
            _run(compiler, "-shared", *(f"{file.stem}.o" for file in files), "-o", library.name, "-lm", folder=aside)
            (Path(aside) / library.name).replace(library)
    return library


def _run(*command: str, folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)


def _cpu_features() -> Iterator[str]:
    """What native code depends on: a home folder may be shared between machines."""
    yield platform.machine()
    if CPU_INFO.exists():
        yield from sorted({line for line in CPU_INFO.read_text().splitlines() if line.startswith(CPU_FEATURE_LINES)})


def _expose_openmp() -> None:
    """Makes the OpenMP library that torch has loaded visible to ours, so that both use the same threads."""
    maps = Path("/proc/self/maps")
    if maps.exists():
        files = {line.split()[-1] for line in maps.read_text().splitlines() if "omp" in line.rpartition("/")[2]}
        for file in sorted(files):
            ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)


LANES = 16
"""What the kernels take at once."""


def load_kernels() -> ctypes.CDLL:
    """CannotCompile says what is missing."""
    return compile_library("kernels", Path(__file__).with_name("c"))


@cache
def optional_kernels() -> ctypes.CDLL | None:
    """None where they cannot be had; `turnwise doctor` says why."""
    try:
        return load_kernels()
    except CompilationError:
        return None


def call_kernel(kernel: Any, about: ctypes.Structure, *others: Any) -> None:
    """Calls a C function that returns 0 unless memory ran out."""
    if kernel(ctypes.byref(about), *others):
        raise MemoryError("no memory left for a kernel of the engine")
