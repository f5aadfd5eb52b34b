"""Environment variables that torch's libraries read when they are loaded."""

import os

DEFAULTS = {
    # OpenMP threads that spin at the end of a parallel region take the CPU from whoever they wait for: beside one busy
    # process a training step took five times as long.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    # mimalloc, PyTorch's allocator on ARM, returns freed memory after 10 ms; a training step then spends a fifth of its
    # time on page faults.
    "MIMALLOC_PURGE_DELAY": "-1",
}


def set_library_defaults() -> None:
    """Set `DEFAULTS`, except for variables that the user has set. Has no effect once torch is loaded."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
