"""The engine's C code, compiled and loaded. Where it cannot be had, torch does the same, slower."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from turnwise.engine.native.compiled import CannotCompile, compiled

LANES = 16
"""What the kernels take at once."""


def load_kernels() -> ctypes.CDLL:
    """CannotCompile says what is missing."""
    return compiled("kernels", Path(__file__).with_name("c"))


@cache
def kernels() -> ctypes.CDLL | None:
    """None where they cannot be had; `turnwise doctor` says why."""
    try:
        return load_kernels()
    except CannotCompile:
        return None


def run(kernel: Any, about: ctypes.Structure, *others: Any) -> None:
    """Calls a C function that returns 0 unless memory ran out."""
    if kernel(ctypes.byref(about), *others):
        raise MemoryError("no memory left for a kernel of the engine")
