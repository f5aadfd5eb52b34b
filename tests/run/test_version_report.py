"""`turnwise --version --full` shows what a bug report needs, and nothing about the user."""

import getpass
import platform
import socket
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from turnwise.config.version import installed_version
from turnwise.run import versions
from turnwise.sandbox.host import sandbox_report

PACKAGES = ["torch", "triton", "transformers", "tokenizers", "numpy", "pydantic", "peft", "vllm", "ray"]
HARDWARE = ["cuda", "gpu", "cores", "memory", "sandbox", "compiler"]


@pytest.fixture(autouse=True, scope="module")
def sandboxes_started_once() -> Iterator[None]:
    """They start for all of these tests once, which takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "sandbox_report", cache(sandbox_report))
        yield


def test_report_has_versions_and_hardware() -> None:
    report = dict(versions.report_versions())
    assert list(report) == ["turnwise", "python", "system", *PACKAGES, *HARDWARE]
    assert report["turnwise"] == installed_version()
    assert report["torch"] == torch.__version__
    assert report["python"].startswith(platform.python_version())
    assert report["sandbox"].endswith("is used") or report["sandbox"].startswith("none: ")


def test_report_names_neither_paths_nor_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "gcc"
    compiler.write_text('#!/bin/sh\necho "$0 (Some) 12.2.0"\necho "InstalledDir: /home/me"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    report = dict(versions.report_versions())
    assert report["compiler"] == "gcc (Some) 12.2.0"
    text = "\n".join(report.values())
    words = [socket.gethostname(), *([getpass.getuser()] if getpass.getuser() != "root" else [])]
    assert [part for part in (*words, str(Path.home()), " /", "(/") if part in text] == []


def test_report_names_driver_and_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (me@host)\n")
    monkeypatch.setattr(versions, "DRIVER", driver)

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(versions, "version", missing)
    monkeypatch.setattr(versions, "find_compiler", lambda: None)
    report = dict(versions.report_versions())
    assert report["cuda"].endswith("driver 580.95.05")
    assert (report["ray"], report["compiler"]) == ("not installed", "none")
