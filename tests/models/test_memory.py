import gc
import subprocess
import sys

import pytest

from turnwise.models.memory import settle_memory

FRESH_PAGES = """
import resource
from turnwise.models.memory import settle_memory
import torch

if {settled}:
    settle_memory()
for _ in range(8):  # the first ones still find their place
    torch.empty(1 << 24).fill_(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(16):
    torch.empty(1 << 24).fill_(1)  # 64 MiB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_the_collector_spares_what_existed() -> None:
    settle_memory()
    assert gc.get_freeze_count() > 10_000


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is glibc's")
def test_a_tensor_takes_the_pages_of_the_last_one() -> None:
    def faults(settled: bool) -> int:
        program = [sys.executable, "-c", FRESH_PAGES.format(settled=settled)]
        return int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)

    assert 4 * faults(settled=True) < faults(settled=False)
