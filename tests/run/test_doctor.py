"""The doctor finds what is broken, and says how to fix it."""

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from turnwise.run import doctor
from turnwise.run.doctor import Finding, check_machine
from turnwise.sandbox.host import sandbox_report


@pytest.fixture(autouse=True, scope="module")
def sandboxes_started_once() -> Iterator[None]:
    """They start for all of these tests once, which takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "sandbox_report", cache(sandbox_report))
        yield


def found(name: str, folder: Path) -> Finding:
    (finding,) = [finding for finding in check_machine(folder) if finding.name == name]
    return finding


def test_healthy_machine_has_no_findings(tmp_path: Path) -> None:
    assert [finding.name for finding in check_machine(tmp_path) if finding.fix and finding.required] == []


def test_check_machine_continues_after_a_broken_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def broken(name: str) -> ModuleType:
        if name == "torch":
            raise OSError("libtorch.so: cannot open")
        return real(name)

    monkeypatch.setattr(importlib, "import_module", broken)
    torch = found("torch", tmp_path)
    assert "libtorch.so" in torch.found
    assert torch.fix == "pip install --force-reinstall torch"
    assert torch.required
    assert found("gpu", tmp_path).found == "unknown without torch"


def test_missing_extra_is_reported_with_its_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OPTIONAL", {"no-such-package": ("nothing", "pip install no-such-package")})
    finding = found("no-such-package", tmp_path)
    assert (finding.fix, finding.required) == ("pip install no-such-package", False)


def test_read_only_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dir: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    finding = found("runs folder", tmp_path / "not" / "yet")
    assert finding.found.endswith("Permission denied")
    assert finding.fix == "choose another record.folder"
    assert finding.required


def test_sandbox_is_tried_and_its_isolation_reported(tmp_path: Path) -> None:
    found = {finding.name.strip(): finding for finding in check_machine(tmp_path)}
    assert {"sandbox", "namespaces", "landlock"} <= found.keys()
    assert found["sandbox"].found.endswith("is used") or found["sandbox"].fix
