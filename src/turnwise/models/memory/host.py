"""Memory of this machine that is not in use, and what keeps a process from giving it back and taking it again.

glibc returns large blocks to the system as soon as they are freed, and the next tensor of that size pays a page fault
for each of its pages. `turnwise/__init__.py` does the same for mimalloc, PyTorch's allocator on ARM. Python's garbage
collector scans all live objects from time to time, which takes a quarter of a second; most of them belong to libraries.
"""

import atexit
import ctypes
import gc
import sys
from functools import cache
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Return the bytes that can be allocated without swapping, within the limit of a container. None if unknown."""
    limits = [_of_machine(meminfo), _of_container(cgroup)]
    return min((limit for limit in limits if limit is not None), default=None)


def _of_machine(meminfo: Path) -> int | None:
    try:
        return 1024 * _read_table(meminfo)["MemAvailable:"]
    except (OSError, KeyError, ValueError):
        return None


def _of_container(cgroup: Path) -> int | None:
    """Return what is left of the limit of a control group (version 2), file caches counted as free."""
    try:
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        return max(0, limit - used + _read_table(cgroup / "memory.stat")["inactive_file"])
    except (OSError, KeyError, ValueError):  # "max": no limit
        return None


def _read_table(path: Path) -> dict[str, int]:
    """Read lines that begin with a name and a number."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}


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
