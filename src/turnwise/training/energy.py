"""Energy of a run, where the hardware counts it: the GPU's counter (NVML), or the CPU's (RAPL) for a run on the CPU.

Both count everything that runs on the device. Without a readable counter a run has no such metric.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from turnwise.record.steps import ENERGY
from turnwise.training.step import Metrics, Part, TrainedStep

JOULES_PER_WH = 3600.0
POWERCAP = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"

Counter = Callable[[], float | None]
"""Returns the joules that a device has used since some time; None if it cannot say."""


class EnergyMeter(Part):
    """Records the energy since the last record: of the step, and of the evaluation before it."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._last: float | None = None

    async def begin(self, step: int) -> None:
        self._last = self._counter()

    def record(self, trained: TrainedStep) -> Metrics:
        before, self._last = self._last, self._counter()
        if before is None or self._last is None or self._last < before:
            return {}
        return {ENERGY: (self._last - before) / JOULES_PER_WH}


def find_counter(device: torch.device) -> Counter | None:
    """Return the counter of a device; None if it has none, or none that this user may read."""
    counter = gpu_counter(device) if device.type == "cuda" else cpu_counter() if device.type == "cpu" else None
    return None if counter is None or counter() is None else counter


def gpu_counter(device: torch.device) -> Counter | None:
    try:
        library = ctypes.CDLL(NVML)
    except OSError:
        return None
    return nvml_counter(library, f"GPU-{torch.cuda.get_device_properties(device).uuid}")


def nvml_counter(library: ctypes.CDLL, uuid: str) -> Counter | None:
    """Return the counter of the GPU with this id. GPUs before Volta have none."""
    handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return None

    def read() -> float | None:
        failed = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.pointer(millijoules))
        return None if failed else millijoules.value / 1e3

    return read


def cpu_counter(powercap: Path = POWERCAP) -> Counter | None:
    """Return the sum of the packages' counters, which start again at 0 when they are full."""
    packages = sorted(path for path in powercap.glob("intel-rapl:*") if path.name.count(":") == 1)
    last: dict[Path, int] = {}
    total = 0

    def read() -> float | None:
        nonlocal total
        with suppress(OSError, ValueError):
            for package in packages:
                total += _advance(package, last)
            return total / 1e6
        return None

    return read if packages else None


def _advance(package: Path, last: dict[Path, int]) -> int:
    """Return the microjoules since the last call."""
    now = int((package / "energy_uj").read_text())
    before, last[package] = last.get(package, now), now
    return now - before if now >= before else now - before + int((package / "max_energy_range_uj").read_text())
