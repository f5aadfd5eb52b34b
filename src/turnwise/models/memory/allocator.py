"""Keep freed memory in the process, and exempt long-lived objects from garbage collection.

glibc returns large blocks to the system as soon as they are freed, and the next tensor of that size pays a page fault
for each of its pages. `turnwise/__init__.py` does the same for mimalloc, PyTorch's allocator on ARM. Python's garbage
collector scans all live objects from time to time, which takes a quarter of a second; most of them belong to libraries.
"""

import atexit
import ctypes
import gc
import sys
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Option numbers of `mallopt`, from <malloc.h>."""


def freeze_gc() -> None:
    """Exempt all objects that exist now from garbage collection, until the program ends."""
    gc.freeze()
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)  # some libraries report objects that are never collected as leaks


@cache
def configure_allocator() -> None:
    """Keep freed blocks, where the C library supports it, and freeze the garbage collector. Runs once."""
    freeze_gc()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 1 << 30)
        mallopt(TRIM_THRESHOLD, (1 << 31) - 1)
