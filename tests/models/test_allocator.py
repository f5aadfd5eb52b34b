import gc
import subprocess
import sys
from functools import cache

import pytest

from turnwise.models.memory.allocator import configure_allocator

FRESH_PAGES = """
import resource
import time
from turnwise.models.memory.allocator import configure_allocator
import torch

if {settled}:
    configure_allocator()
for _ in range(8):  # warm-up
    {block}
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(16):
    {block}
    time.sleep(0.03)  # mimalloc, PyTorch's allocator on ARM, purges freed memory after 10 ms
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
TENSOR = "torch.empty(1 << 24).fill_(1)"
"""64 MiB from PyTorch's allocator: that of the C library on x86, mimalloc on ARM."""
BYTES = "bytearray(b'1') * (1 << 26)"
"""64 MiB from the C library's allocator."""


@cache
def count_faults(block: str, *, settled: bool) -> int:
    program = [sys.executable, "-c", FRESH_PAGES.format(block=block, settled=settled)]
    return int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)


def test_freeze_gc_exempts_existing_objects() -> None:
    configure_allocator()
    assert gc.get_freeze_count() > 10_000


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is glibc's")
@pytest.mark.parametrize("block", [TENSOR, BYTES], ids=["tensor", "bytes"])
def test_freed_blocks_are_reused_without_page_faults(block: str) -> None:
    assert 4 * count_faults(block, settled=True) < count_faults(BYTES, settled=False)
