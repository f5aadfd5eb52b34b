"""Random small runs, killed and resumed, end as those left alone, bit for bit. `make soak`: a thousand of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = int(os.environ.get("TURNWISE_SOAK", "0"))
FIRST = int(os.environ.get("TURNWISE_SOAK_SEED", "0"))
"""Number of the first run."""
PER_TEST = 50 if SOAK else 4


@pytest.mark.parametrize("part", range(max(1, SOAK)))
def test_killed_and_resumed_random_runs_end_alike(part: int, tmp_path: Path) -> None:
    tests = Path(__file__).parent.parent
    path = os.pathsep.join([str(tests), str(tests.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    script, first = tests / "recipes/random_runs.py", FIRST + part * PER_TEST
    command = [sys.executable, str(script), str(tmp_path), str(first), str(PER_TEST)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
