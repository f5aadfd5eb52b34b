"""Wheel and sdist contain everything, and the installed wheel trains outside the checkout."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from email.message import Message
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from pages_for_tests import ROOT, links_of

BUILD = "import sys; from hatchling import build; print(build.{}(sys.argv[1]))"
"""What pip and build call, without the download of an isolated build environment."""


class Built(NamedTuple):
    sdist: Path
    wheel: Path
    """Built from the unpacked sdist, as for users whose platform has no wheel."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, optional_part: Callable[..., NoReturn]) -> Built:
    if find_spec("hatchling") is None or find_spec("hatch_fancy_pypi_readme") is None:
        optional_part("hatchling and hatch-fancy-pypi-readme are not installed: pip install '.[test]'")
    folder = tmp_path_factory.mktemp("dist")
    checkout = folder / "checkout"
    shutil.copytree(ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    sdist = build("build_sdist", checkout, folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return Built(sdist=sdist, wheel=build("build_wheel", unpacked, folder))


def build(hook: str, source: Path, out: Path) -> Path:
    ran = subprocess.run(
        [sys.executable, "-c", BUILD.format(hook), str(out)], cwd=source, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return out / ran.stdout.splitlines()[-1]


def package_files() -> set[str]:
    """Every file of the package in the checkout, relative to src/."""
    files = (ROOT / "src" / "turnwise").rglob("*")
    return {str(file.relative_to(ROOT / "src")) for file in files if file.is_file() and "__pycache__" not in file.parts}


def test_wheel_and_sdist_contain_all_files_of_the_package(built: Built) -> None:
    expected = package_files()
    assert {Path(file).suffix for file in expected} >= {".py", ".toml", ".c", ".txt", ".html", ".js", ".css", ".typed"}
    with zipfile.ZipFile(built.wheel) as archive:
        in_wheel = set(archive.namelist())
    assert expected - in_wheel == set()
    assert {name.partition("/")[0] for name in in_wheel} <= {"turnwise", metadata_folder(built.wheel)}
    with tarfile.open(built.sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in expected} | {"LICENSE", "README.md", "pyproject.toml"} <= in_sdist


def test_wheel_metadata_names_licence_and_links(built: Built) -> None:
    metadata = read_metadata(built.wheel)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {url.partition(",")[0] for url in metadata.get_all("Project-URL", [])} >= {"Homepage", "Issues", "Changelog"}
    assert metadata["Description-Content-Type"] == "text/markdown"
    with zipfile.ZipFile(built.wheel) as archive:
        assert "Apache License" in archive.read(f"{metadata_folder(built.wheel)}/licenses/LICENSE").decode()


def test_links_of_the_package_index_lead_to_the_repository(built: Built) -> None:
    """README links relatively, which a page of the package index cannot follow."""
    relative = set(links_of(ROOT / "README.md"))
    absolute = re.findall(r"\]\(([^)]+)\)", str(read_metadata(built.wheel).get_payload()))
    assert len(absolute) > 20 and all(link.startswith("https://") for link in absolute)
    for link in absolute:
        _, own, path = link.partition("turnwise-rl/turnwise/")
        if own:
            shown = path.removeprefix("main/") if "raw.githubusercontent" in link else path.removeprefix("blob/main/")
            assert shown in relative, link
            assert ("raw.githubusercontent" in link) == shown.endswith(".gif")


def metadata_folder(wheel: Path) -> str:
    return "-".join(wheel.name.split("-")[:2]) + ".dist-info"


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return Parser().parsestr(archive.read(f"{metadata_folder(wheel)}/METADATA").decode())


def variables_outside_the_checkout() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A virtual environment with the wheel; its dependencies are those of the environment of the tests."""
    folder = tmp_path_factory.mktemp("elsewhere") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install"]
    flags = ["--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, *flags, built.wheel], env=variables_outside_the_checkout(), check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Written after the installation, so that pip does not see the turnwise of the checkout. A folder that a .pth file
    # names is added to the path without reading its own .pth files: the checkout stays off the path.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_installed_wheel_trains_outside_the_checkout(environment: Path, shared_cache: Path) -> None:
    outside = environment.parent
    variables = variables_outside_the_checkout()
    variables |= {"PATH": os.defpath, "OMP_NUM_THREADS": "1", "TURNWISE_CACHE": str(shared_cache), "COLUMNS": "200"}

    def run(*command: str) -> str:
        ran = subprocess.run(command, cwd=outside, env=variables, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    where = run("env/bin/python", "-c", "import turnwise; print(turnwise.__file__)")
    assert Path(where.strip()).is_relative_to(environment)
    small = [
        "--train.steps=1",
        "--rollout.groups=8",
        "--train.mini_batch=8",
        "--eval.episodes=4",
        "--model.warmup_steps=15",
    ]
    out = run("env/bin/turnwise", "train", "bandit", *small, "--name", "first")
    assert "next: env/bin/turnwise eval runs/first" in out
    assert "trained nothing" not in out
    assert (outside / "runs" / "first" / "summary.json").is_file()
    assert (outside / "runs" / "first" / "curve.svg").is_file()
