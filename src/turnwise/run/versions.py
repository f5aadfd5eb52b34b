"""Versions and hardware for a bug report: no paths, no names of users or machines."""

import platform
import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from turnwise.config.version import installed_version
from turnwise.engine.cpu.kernels import find_compiler
from turnwise.run.machine import ask_torch, describe_cores, describe_gpus, describe_memory
from turnwise.sandbox.host import sandbox_report

PACKAGES = ("torch", "triton", "transformers", "tokenizers", "numpy", "pydantic", "peft", "vllm", "ray")
DRIVER = Path("/proc/driver/nvidia/version")


def report_versions() -> Iterator[tuple[str, str]]:
    """Yield (name, version or description)."""
    yield "turnwise", installed_version()
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "system", f"{_system()}, {platform.system()} {platform.release()}, {platform.machine()}"
    for package in PACKAGES:
        yield package, _package(package)
    yield "cuda", ask_torch(lambda torch: f"{torch.version.cuda or 'none'} (torch), {_driver()}")
    yield "gpu", describe_gpus()
    yield "cores", describe_cores()
    yield "memory", describe_memory()
    yield "sandbox", sandbox_report()[0].removeprefix("sandbox: ")
    yield "compiler", _compiler()


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return "unknown distribution"


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _driver() -> str:
    """Return the version of NVIDIA's driver."""
    try:
        match = re.search(r"Module.*?\s(\d+(?:\.\d+)+)", DRIVER.read_text())
    except OSError:
        return "no NVIDIA driver"
    return f"driver {match[1]}" if match else "unknown driver"


def _compiler() -> str:
    """Return the first line that the compiler prints about itself, without its path."""
    compiler = find_compiler()
    if compiler is None:
        return "none"
    try:
        ran = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return f"{Path(compiler).name}, which does not run"
    return ran.stdout.partition("\n")[0].replace(compiler, Path(compiler).name)
