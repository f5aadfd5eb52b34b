"""Compile the engine's C kernels once for this machine's CPU and load them. Without a compiler, torch is used."""

import ctypes
import hashlib
import logging
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
"""Flags that not every compiler supports; the first set that compiles and loads is used."""
TIMEOUT_S = 120
LANES = 16
"""Sizes that the kernels take are multiples of this."""
CPU_INFO = Path("/proc/cpuinfo")
CPU_FEATURE_LINES = ("flags", "Features", "CPU implementer", "CPU part")
"""Lines of /proc/cpuinfo that list the supported instructions, on x86 and on ARM."""
log = logging.getLogger(__name__)


class CompilationError(Exception):
    """The kernels cannot be compiled; the message is one line."""


def find_compiler() -> str | None:
    """Return the C compiler on the path; $CC comes first."""
    return next(filter(None, map(shutil.which, (os.environ.get("CC", ""), "gcc", "cc", "clang"))), None)


def compile_library(name: str, folder: Path) -> ctypes.CDLL:
    """Compile all C files of the folder into one library and load it."""
    compiler = find_compiler()
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
    """Return the compiled library, written to a temporary folder and renamed, so that an existing one is complete."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(sources.glob("*.[ch]"))]
    key = "\n".join((*texts, compiler, *FLAGS, *flags, *_cpu_features()))
    folder = cache_folder() / "compiled"
    library = folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            # Linked in a second step without -fopenmp, which would add a second thread pool beside torch's.
            files = sorted(sources.resolve().glob("*.c"))
            _run(compiler, *FLAGS, *flags, "-c", *map(str, files), folder=temporary)
            _run(
                compiler, "-shared", *(f"{file.stem}.o" for file in files), "-o", library.name, "-lm", folder=temporary
            )
            (Path(temporary) / library.name).replace(library)
    return library


def _run(*command: str, folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)


def _cpu_features() -> Iterator[str]:
    """Yield what compiled code depends on: a home folder may be shared between machines."""
    yield platform.machine()
    if CPU_INFO.exists():
        yield from sorted({line for line in CPU_INFO.read_text().splitlines() if line.startswith(CPU_FEATURE_LINES)})


def _expose_openmp() -> None:
    """Make the OpenMP library that torch loaded visible to the kernels, so that both use the same threads."""
    maps = Path("/proc/self/maps")
    if maps.exists():
        files = {line.split()[-1] for line in maps.read_text().splitlines() if "omp" in line.rpartition("/")[2]}
        for file in sorted(files):
            ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)


def load_kernels() -> ctypes.CDLL:
    """Load the kernels, or raise CompilationError."""
    return compile_library("kernels", Path(__file__).with_name("c"))


@cache
def optional_kernels() -> ctypes.CDLL | None:
    """Return the kernels, or None if they cannot be compiled, which is logged once."""
    try:
        return load_kernels()
    except CompilationError as reason:
        log.warning("note: %s: episodes on the CPU take longer without compiled kernels; install gcc", reason)
        return None


def call_kernel(kernel: Any, arguments: ctypes.Structure, *others: Any) -> None:
    """Call a C function that returns 0 unless it runs out of memory."""
    if kernel(ctypes.byref(arguments), *others):
        raise MemoryError("out of memory in a kernel of the engine")
