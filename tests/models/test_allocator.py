import gc
import subprocess
import sys

import pytest

from turnwise.models.memory.allocator import configure_allocator

FRESH_PAGES = """
import os
import resource
import time
from turnwise.models.memory.allocator import configure_allocator
import torch

def count_faults(block, settled):
    if settled:
        configure_allocator()
    for _ in range(8):  # warm-up
        exec(block)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(16):
        exec(block)
        time.sleep(0.03)  # mimalloc, PyTorch's allocator on ARM, purges freed memory after 10 ms
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

for case in {cases}:  # each in a process of its own, with torch imported
    if not os.fork():
        print(count_faults(*case), flush=True)
        os._exit(0)
    os.wait()
"""
TENSOR = "torch.empty(1 << 24).fill_(1)"
"""64 MiB from PyTorch's allocator: that of the C library on x86, mimalloc on ARM."""
BYTES = "bytearray(b'1') * (1 << 26)"
"""64 MiB from the C library's allocator."""


def count_faults(*cases: tuple[str, bool]) -> list[int]:
    """Return the number of page faults for each (block, settled)."""
    program = [sys.executable, "-c", FRESH_PAGES.format(cases=cases)]
    return [int(line) for line in subprocess.run(program, check=True, capture_output=True, text=True).stdout.split()]


def test_freeze_gc_exempts_existing_objects() -> None:
    configure_allocator()
    assert gc.get_freeze_count() > 10_000


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is glibc's")
def test_freed_blocks_are_reused_without_page_faults() -> None:
    tensor, plain, unsettled = count_faults((TENSOR, True), (BYTES, True), (BYTES, False))
    assert 4 * tensor < unsettled
    assert 4 * plain < unsettled
