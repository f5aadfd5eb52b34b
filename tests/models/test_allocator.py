import gc
import resource
import sys
import time
from collections.abc import Callable

import pytest
import torch

from processes_for_tests import forked_with_output
from turnwise.models.memory.allocator import configure_allocator

BLOCK = 40 << 20
"""Bytes. glibc keeps smaller blocks by itself once some were freed: up to 32 MiB."""


def allocate_tensor() -> None:
    """Allocate from PyTorch's allocator: that of the C library on x86, mimalloc on ARM."""
    torch.empty(BLOCK, dtype=torch.uint8).fill_(1)


def allocate_bytes() -> None:
    """Allocate from the C library's allocator."""
    bytearray(b"1") * BLOCK


def count_faults(allocate: Callable[[], None], settled: bool) -> int:
    """Return the number of page faults of a process that allocates the same block again and again."""
    with forked_with_output(print_faults, allocate, settled) as (_, output):
        return int(output.read())


def print_faults(allocate: Callable[[], None], settled: bool) -> None:
    if settled:
        configure_allocator()
    for _ in range(2):  # warm-up
        allocate()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
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
