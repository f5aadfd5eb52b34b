"""Memory that a tensor gave back is kept for the next one.

glibc hands large blocks back to the system as soon as they are free, and the next tensor of that size pays for every
page anew: about a twentieth of a training step on the CPU.
"""

import ctypes
import sys
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""As <malloc.h> numbers them."""


@cache
def keep_freed_memory() -> None:
    """For this process, from now on; where the C library has no such setting, nothing changes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 1 << 30)
        mallopt(TRIM_THRESHOLD, (1 << 31) - 1)
