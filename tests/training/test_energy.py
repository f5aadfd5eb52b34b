"""Energy of a run from the counters of its device; absent where there is none."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from runs_for_tests import metrics, quiet, small
from turnwise.record.steps import EpisodeSource, StepRecord
from turnwise.report.formatting import format_energy
from turnwise.run import build_loop
from turnwise.run.cost import recorded_wh
from turnwise.run.train import train
from turnwise.training.energy import Counter, cpu_counter, nvml_counter


def write_package(folder: Path, name: str, microjoules: int, largest: int = 1000) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{largest}\n")


def test_cpu_counter_adds_packages_and_starts_again_when_full(tmp_path: Path) -> None:
    write_package(tmp_path, "intel-rapl:0", 900)
    write_package(tmp_path, "intel-rapl:1", 100)
    write_package(tmp_path, "intel-rapl:0:0", 5)  # the cores of package 0, which it includes
    read = cpu_counter(tmp_path)
    assert read is not None
    assert read() == 0.0
    write_package(tmp_path, "intel-rapl:0", 50)
    write_package(tmp_path, "intel-rapl:1", 120)
    write_package(tmp_path, "intel-rapl:0:0", 500)
    assert read() == pytest.approx((150 + 20) / 1e6)


def test_cpu_without_a_readable_counter_has_none(tmp_path: Path) -> None:
    assert cpu_counter(tmp_path) is None
    (tmp_path / "intel-rapl:0").mkdir()
    read = cpu_counter(tmp_path)
    assert read is not None and read() is None


class Nvml:
    """NVIDIA's library with one GPU."""

    def __init__(self, millijoules: int | None) -> None:
        self.millijoules = millijoules

    def nvmlInit_v2(self) -> int:  # noqa: N802  (name in the library)
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: object) -> int:  # noqa: N802  (name in the library)
        return 0 if uuid == b"GPU-1" else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object, out: Any) -> int:  # noqa: N802  (name in the library)
        if self.millijoules is None:
            return 3  # not supported
        ctypes.cast(out, ctypes.POINTER(ctypes.c_ulonglong)).contents.value = self.millijoules
        return 0


def test_gpu_counter_reads_joules() -> None:
    read = nvml_counter(Nvml(7_200_000), "GPU-1")  # type: ignore[arg-type]
    assert read is not None and read() == 7200.0
    assert nvml_counter(Nvml(0), "GPU-2") is None  # type: ignore[arg-type]
    unsupported = nvml_counter(Nvml(None), "GPU-1")  # type: ignore[arg-type]
    assert unsupported is not None and unsupported() is None


def counting() -> Counter:
    joules = iter(range(0, 10**6, 3600))
    return lambda: float(next(joules))


def test_run_records_the_energy_of_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_loop, "find_counter", lambda device: counting())
    summary = train(small(tmp_path, train__steps=3), console=quiet())
    steps = [row for row in metrics(tmp_path / "run") if "rollout/success" in row]
    assert [row["energy/wh"] for row in steps] == [1.0, 1.0, 1.0]
    assert summary["energy_wh"] == 3.0
    assert "3 Wh" in (tmp_path / "run/report.html").read_text()


def test_run_without_a_counter_has_no_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_loop, "find_counter", lambda device: None)
    summary = train(small(tmp_path, train__steps=1), console=quiet())
    assert "energy_wh" not in summary
    assert all("energy/wh" not in row for row in metrics(tmp_path / "run"))


def test_energy_of_a_run_needs_that_of_every_step() -> None:
    known, unknown = (
        StepRecord.of(1, EpisodeSource.PLAYED, {"rollout/success": 1.0, **more}) for more in ({"energy/wh": 2.0}, {})
    )
    assert recorded_wh([known, known]) == 4.0
    assert recorded_wh([known, unknown]) is None
    assert recorded_wh([unknown]) is None


@pytest.mark.parametrize(("wh", "text"), [(0.4212, "0.421 Wh"), (17.26, "17.3 Wh"), (2312.0, "2.31 kWh")])
def test_energy_is_shown_with_three_digits(wh: float, text: str) -> None:
    assert format_energy(wh) == text
