"""Whether there may be a CUDA device, known without importing torch."""

import ctypes
import sys
from importlib import metadata

from turnwise.core.errors import UserError

DRIVERS = {"linux": "libcuda.so.1", "win32": "nvcuda.dll"}
"""Library of NVIDIA's driver by platform."""


def require_cuda(is_available: bool) -> None:
    if not is_available:
        raise UserError('No CUDA device is available: use device "cpu" or "auto".')


def may_have_cuda() -> bool:
    """Return whether torch may find a CUDA device: not with a build for CPUs, and not without NVIDIA's driver.

    ROCm's builds call their devices cuda too.
    """
    build = metadata.version("torch").partition("+")[2]
    if build == "cpu" or sys.platform not in DRIVERS:
        return False
    if build.startswith("rocm"):
        return True
    try:
        ctypes.CDLL(DRIVERS[sys.platform])
    except OSError:
        return False
    return True
