"""Wheel and sdist contain everything, are reproducible, and the installed wheel works outside the checkout."""

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
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

import pytest

from pages_for_tests import ROOT, links_of
from repositories_for_tests import git

BUILD = "import sys; from hatchling import build; print(build.{}(sys.argv[1]))"
"""What pip and build call, without the download of an isolated build environment."""
TAG = "1.2.3"


class Built(NamedTuple):
    sdist: Path
    wheel: Path
    """Built from the unpacked sdist, as for users whose platform has no wheel."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, optional_part: Callable[..., NoReturn]) -> Path:
    """A repository with the files of the package and the tag of a release."""
    if missing := [name for name in ("hatchling", "hatch_vcs", "hatch_fancy_pypi_readme") if find_spec(name) is None]:
        optional_part(f"{', '.join(missing)} cannot be imported: pip install '.[test]'")
    checkout = tmp_path_factory.mktemp("dist") / "checkout"
    shutil.copytree(ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, checkout)
    git("init", "--quiet", folder=checkout)
    git("add", ".", folder=checkout)
    git("commit", "--quiet", "--message=Release", folder=checkout)
    git("tag", f"v{TAG}", folder=checkout)
    return checkout


@pytest.fixture(scope="module")
def built(checkout: Path) -> Built:
    folder = checkout.parent
    sdist = build("build_sdist", checkout, folder)
    return Built(sdist=sdist, wheel=build("build_wheel", unpack(sdist, folder / "unpacked"), folder))


def build(hook: str, source: Path, out: Path, *, umask: int = 0o022) -> Path:
    """Call the hook of the build backend, and return the archive that it wrote."""
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-c", BUILD.format(hook), str(out)]
    variables = {**os.environ, "SOURCE_DATE_EPOCH": "1750000000"}
    ran = subprocess.run(command, cwd=source, env=variables, umask=umask, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return out / ran.stdout.splitlines()[-1]


def unpack(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked


def test_builds_are_reproducible(checkout: Path, built: Built, tmp_path: Path) -> None:
    """Neither the folder, the umask nor the times of the files show, and the sdist makes the wheel of the checkout."""
    other = tmp_path / "elsewhere"
    shutil.copytree(checkout, other)
    for file in (other / "src").rglob("*"):
        os.utime(file, (0, 0))
        file.chmod(file.stat().st_mode & ~0o077)
    sdist = build("build_sdist", other, tmp_path / "dist", umask=0o077)
    wheel = build("build_wheel", other, tmp_path / "dist", umask=0o077)
    assert (sdist.name, wheel.name) == (f"turnwise-{TAG}.tar.gz", f"turnwise-{TAG}-py3-none-any.whl")
    assert sdist.read_bytes() == built.sdist.read_bytes()
    assert wheel.read_bytes() == built.wheel.read_bytes()


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


class Installation(NamedTuple):
    environment: Path
    folder: Path
    """Empty at first; commands run here."""
    cache: Path

    @property
    def package(self) -> Path:
        (package,) = self.environment.glob("lib/python*/site-packages/turnwise")
        return package

    def variables(self, *, path: str = os.defpath) -> dict[str, str]:
        variables = variables_outside_the_checkout()
        variables.pop("CC", None)
        return variables | {"PATH": path, "OMP_NUM_THREADS": "1", "TURNWISE_CACHE": str(self.cache), "COLUMNS": "200"}

    def run(self, *command: str, path: str = os.defpath) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(
            [str(self.environment / "bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.variables(path=path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran


@pytest.fixture(scope="module")
def trained(
    environment: Path, tmp_path_factory: pytest.TempPathFactory, shared_cache: Path
) -> tuple[Installation, str]:
    """The installation after one step on the bandit, and what that printed."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "models").symlink_to(shared_cache / "models")  # saves the warm-up where another test did it
    (shared_cache / "models").mkdir(exist_ok=True)
    installation = Installation(environment, tmp_path_factory.mktemp("empty"), cache)
    small = [
        "--train.steps=1",
        "--rollout.groups=8",
        "--train.mini_batch=8",
        "--eval.episodes=4",
        "--model.warmup_steps=15",
    ]
    return installation, installation.run("turnwise", "train", "bandit", *small, "--name", "first").stdout


def test_installed_wheel_trains_outside_the_checkout(trained: tuple[Installation, str]) -> None:
    installation, out = trained
    where = installation.run("python", "-c", "import turnwise; print(turnwise.__file__, turnwise.__version__)").stdout
    assert where.split() == [str(installation.package / "__init__.py"), TAG]
    assert "turnwise eval runs/first" in out.partition("next: ")[2]
    assert "trained nothing" not in out
    run = installation.folder / "runs" / "first"
    assert (run / "summary.json").is_file() and (run / "curve.svg").is_file()


def test_installed_wheel_compiles_kernels_into_the_cache(trained: tuple[Installation, str]) -> None:
    installation, _ = trained
    if not any(map(shutil.which, ("gcc", "cc", "clang"))):
        pytest.skip("there is no C compiler")
    assert list((installation.cache / "compiled").glob("kernels-*.so"))
    in_package = {file.relative_to(installation.package.parent) for file in installation.package.rglob("*.*")}
    assert {str(path) for path in in_package if "__pycache__" not in path.parts} <= package_files()


def test_installed_wheel_works_without_a_compiler(trained: tuple[Installation, str]) -> None:
    installation, _ = trained
    nothing = str(installation.folder / "nothing")
    ran = installation.run("turnwise", "eval", "runs/first", "--episodes", "2", path=nothing)
    assert "note: no C compiler on the path" in ran.stderr
    assert "success" in ran.stdout


def test_installed_wheel_serves_the_viewer(trained: tuple[Installation, str]) -> None:
    """Every file of the page is served, followed from the page through stylesheets and modules."""
    installation, _ = trained
    command = [str(installation.environment / "bin" / "turnwise"), "view", "runs", "--port", "0"]
    with subprocess.Popen(
        command, cwd=installation.folder, env=installation.variables(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            printed = process.stdout.readline()
            address = next(word for word in printed.split() if word.startswith("http://"))
            served = crawl(address)
        finally:
            process.kill()
    static = installation.package / "viewer" / "static"
    assert {file.name for file in static.iterdir()} <= {name.rpartition("/")[2] or "index.html" for name in served}


def crawl(address: str) -> set[str]:
    """Return the paths of the page and of everything that it links, loads or imports."""
    seen: set[str] = set()
    left = [urljoin(address, "/")]
    while left:
        page = left.pop()
        seen.add(urlsplit(page).path)
        with urlopen(page) as response:
            assert response.status == 200
            text = response.read().decode()
        links = re.findall(r"""(?:href=|src=|from |import |import\()["']([^"'?#:]+\.(?:js|css|svg))""", text)
        left += {link for name in links if urlsplit(link := urljoin(page, name)).path not in seen}
    return seen
