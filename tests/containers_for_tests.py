"""A base image for containers, made of this machine's programs: tests reach no registry."""

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

BASE = "localhost/turnwise-test-base"
PROGRAMS = (
    *("bash", "sh", "cat", "chmod", "cp", "env", "grep", "head", "id", "ln", "ls", "mkdir", "mv", "rm", "sed"),
    *("seq", "sleep", "sort", "touch", "tr", "truncate"),
)
LINKS = ("/bin", "/sbin", "/lib", "/lib64")
"""Folders that are links on machines with a merged /usr."""
RUNC = """
[engine]
runtime = "runc"
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=1024:1024"]
"""


def podman(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False, timeout=300)


def make_base(folder: Path, patch: pytest.MonkeyPatch) -> str:
    """Import the base image and run a container of it; return why that fails, or nothing."""
    if shutil.which("podman") is None:
        return "podman is not installed"
    _write_archive(folder / "base.tar")
    imported = podman("import", str(folder / "base.tar"), BASE)
    tried = imported if imported.returncode else _try_to_build(folder)
    if tried.returncode and shutil.which("runc"):  # where crun does not support this machine's cgroups
        (folder / "containers.conf").write_text(RUNC, encoding="utf-8")
        patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
        tried = _try_to_build(folder)
    return f"podman does not work here: {tried.stderr.strip().splitlines()[-1]}" if tried.returncode else ""


def _try_to_build(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "Dockerfile").write_text(f"FROM {BASE}\nRUN true\n", encoding="utf-8")
    return podman("build", "--no-cache", "--quiet", str(folder))


def _write_archive(path: Path) -> None:
    programs = [found for name in PROGRAMS if (found := shutil.which(name))]
    files = set(programs)
    for program in programs:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        files.update(re.findall(r"(/\S+) \(0x", listed))
    links = [link for link in LINKS if Path(link).is_symlink()]
    with tarfile.open(path, "w") as tar:
        for link in links:
            tar.add(link, arcname=link)
        for file in sorted(files):
            link = next((link for link in links if file.startswith(f"{link}/")), "")
            name = f"{Path(link).resolve()}{file.removeprefix(link)}" if link else file
            tar.add(Path(file).resolve(), arcname=name)
