"""The version comes from git's tags, and is always a version where there are none."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest
from packaging.version import Version

from pages_for_tests import ROOT
from repositories_for_tests import git


@pytest.fixture(autouse=True)
def backend(optional_part: Callable[..., NoReturn]) -> None:
    if find_spec("hatch_vcs") is None or find_spec("hatch_fancy_pypi_readme") is None:
        optional_part("hatch-vcs and hatch-fancy-pypi-readme are not installed: pip install '.[test]'")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The files that the version depends on, in one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    git("init", "--quiet", folder=folder)
    git("add", ".", folder=folder)
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    git("commit", "--quiet", "--allow-empty", "--message=Change", folder=folder)


def version_of(folder: Path) -> Version:
    command = [sys.executable, "-m", "hatchling", "version"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return Version(ran.stdout.strip())


def test_tagged_commit_has_the_version_of_its_tag(repository: Path) -> None:
    git("tag", "v0.3.0", folder=repository)
    assert str(version_of(repository)) == "0.3.0"


def test_commits_after_a_tag_count_and_name_the_commit(repository: Path) -> None:
    git("tag", "v0.3.0", folder=repository)
    commit(repository)
    commit(repository)
    version = version_of(repository)
    assert version.public == "0.3.1.dev2"
    assert version.local is not None and version.local.startswith("g")


def test_shallow_clone_without_tags_has_a_version(repository: Path, tmp_path: Path) -> None:
    git("tag", "v0.3.0", folder=repository)
    commit(repository)
    git("clone", "--quiet", "--depth=1", "--no-tags", repository.as_uri(), "shallow", folder=tmp_path)
    version = version_of(tmp_path / "shallow")
    assert version.is_devrelease and version.base_version == "0.1.0"


def test_sources_without_git_have_the_fallback_version(repository: Path) -> None:
    shutil.rmtree(repository / ".git")
    git("init", "--quiet", folder=repository.parent)  # vendored in a repository with tags of its own
    git("add", ".", folder=repository.parent)
    commit(repository.parent)
    git("tag", "v9.0.0", folder=repository.parent)
    assert str(version_of(repository)) == "0.1.0.dev0"
