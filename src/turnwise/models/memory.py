"""Two habits that cost a training step on the CPU about a twentieth, put off.

glibc hands large blocks back to the system as soon as they are free, and the next tensor of that size pays for every
page anew. (PyTorch for ARM brings an allocator that keeps them; what other libraries take is still glibc's there.)
Python's collector looks through all that lives now and then, a quarter of a second at a time, and most of it
are the libraries, which never go.
"""

import atexit
import ctypes
import gc
import sys
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""As <malloc.h> numbers them."""


def spare_all() -> None:
    """Takes what exists by now out of the collector's sight, until the end of the program."""
    gc.freeze()
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)  # else libraries that count their own objects complain about those


@cache
def settle_memory() -> None:
    """Keeps freed blocks, where the C library can, and spares what exists by now. Once, before the first model."""
    spare_all()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 1 << 30)
        mallopt(TRIM_THRESHOLD, (1 << 31) - 1)
