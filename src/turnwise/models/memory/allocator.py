"""Keep memory that is freed, and spare the garbage collector what never goes.

glibc returns large blocks to the system as soon as they are freed, and the next tensor of that size pays a page fault
for each of its pages. `turnwise/__init__.py` does the same for mimalloc, PyTorch's allocator on ARM. Python's collector
scans all live objects now and then, a quarter of a second at a time, and most of them are the libraries' own.
"""

import atexit
import ctypes
import gc
import sys
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""As <malloc.h> numbers them."""


def freeze_gc() -> None:
    """Takes what exists by now out of the collector's sight, until the end of the program."""
    gc.freeze()
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)  # else libraries that count their own objects complain about those


@cache
def configure_allocator() -> None:
    """Keeps freed blocks, where the C library can, and spares what exists by now. Once, before the first model."""
    freeze_gc()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 1 << 30)
        mallopt(TRIM_THRESHOLD, (1 << 31) - 1)
