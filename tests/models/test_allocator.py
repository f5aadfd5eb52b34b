import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable

import pytest
import torch

from processes_for_tests import forked_with_output
from turnwise.models.memory.host import configure_allocator

BLOCK = 40 << 20
"""Bytes. glibc keeps smaller blocks by itself once some were freed: up to 32 MiB."""
MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("malloc", ctypes.CDLL(None)))
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("free", ctypes.CDLL(None)))
STRIDE = 64 << 10
"""Bytes from one write to the next. A write is a page fault, unless the process has the page."""


def allocate_tensor() -> None:
    """Allocate from PyTorch's allocator: that of the C library on x86, mimalloc on ARM."""
    torch.empty(BLOCK, dtype=torch.uint8)[::STRIDE].fill_(1)


def allocate_bytes() -> None:
    """Allocate from the C library's allocator."""
    block = MALLOC(BLOCK)
    for offset in range(0, BLOCK, STRIDE):
        ctypes.memset(block + offset, 1, 1)
    FREE(block)


def count_faults(allocate: Callable[[], None], settled: bool) -> int:
    """Return the number of page faults of a process that allocates the same block again and again."""
    with forked_with_output(print_faults, allocate, settled) as (_, output):
        return int(output.read())


def print_faults(allocate: Callable[[], None], settled: bool) -> None:
    if settled:
        configure_allocator()
    for _ in range(4):  # warm-up
        allocate()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(12):
        allocate()
        time.sleep(0.03)  # mimalloc, PyTorch's allocator on ARM, purges freed memory after 10 ms
    sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))


def test_freeze_gc_exempts_existing_objects() -> None:
    configure_allocator()
    assert gc.get_freeze_count() > 10_000


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is glibc's")
def test_freed_blocks_are_reused_without_page_faults() -> None:
    unsettled = count_faults(allocate_bytes, False)
    assert 4 * count_faults(allocate_tensor, True) < unsettled
    assert 4 * count_faults(allocate_bytes, True) < unsettled
