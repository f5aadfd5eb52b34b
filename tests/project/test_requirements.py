"""Requirements have upper bounds, and constraints.txt satisfies them."""

import runpy
import tomllib
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from pages_for_tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
NUMBERED_BY_DATE = {"regex", "mcp-server-time", "mcp-server-git", "hatch-fancy-pypi-readme"}
NUMBERED_BY_QUARTER = {"pyarrow"}
PYTHONS = ("3.11.9", "3.12.9", "3.13.9", "3.14.2")


def requirements_of(names: list[str]) -> Iterator[Requirement]:
    """Yield the requirements, with those of turnwise's own extras in their places."""
    for requirement in map(Requirement, names):
        if requirement.name != "turnwise":
            yield requirement
        for extra in requirement.extras if requirement.name == "turnwise" else ():
            yield from requirements_of(EXTRAS[extra])


def development() -> list[Requirement]:
    return [*requirements_of(PROJECT["project"]["dependencies"]), *requirements_of(["turnwise[test,reasoning-gym]"])]


@pytest.fixture(scope="module")
def lock() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if not line.lstrip().startswith("#")]


def version_of(locked: Requirement) -> Version:
    return Version(str(locked.specifier).removeprefix("=="))


def environment_of(python: str) -> dict[str, str]:
    return {"python_full_version": python, "python_version": python.rpartition(".")[0], "sys_platform": "linux"}


def test_requirements_have_upper_bounds() -> None:
    names = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"], *chain(*EXTRAS.values())]
    without = {
        requirement.name
        for requirement in requirements_of(names)
        if not any(specifier.operator in ("<", "<=", "==", "~=") for specifier in requirement.specifier)
    }
    assert without == NUMBERED_BY_DATE | NUMBERED_BY_QUARTER


def test_build_backend_is_installed_for_tests() -> None:
    installed = {requirement.name for requirement in requirements_of(EXTRAS["test"])}
    assert {Requirement(name).name for name in PROJECT["build-system"]["requires"]} <= installed


@pytest.mark.parametrize("python", PYTHONS)
def test_lock_satisfies_the_requirements_of_development(lock: list[Requirement], python: str) -> None:
    """After a change of pyproject.toml: make lock."""
    environment: Any = environment_of(python)
    versions: dict[str, list[Version]] = {}
    for locked in lock:
        if locked.marker is None or locked.marker.evaluate(environment):
            versions.setdefault(locked.name, []).append(version_of(locked))
    assert {name: several for name, several in versions.items() if len(several) > 1} == {}
    wrong = [
        str(requirement)
        for requirement in development()
        if requirement.marker is None or requirement.marker.evaluate(environment)
        if not any(requirement.specifier.contains(version) for version in versions.get(requirement.name, []))
    ]
    assert wrong == [], "make lock"


def test_lock_names_no_package_index(lock: list[Requirement]) -> None:
    """The lock is installed from whatever index pip is set up for."""
    assert "://" not in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert {specifier.operator for locked in lock for specifier in locked.specifier} == {"=="}


def test_lock_admits_the_cpu_build_of_torch(lock: list[Requirement]) -> None:
    (torch,) = [locked for locked in lock if locked.name == "torch"]
    assert torch.specifier.contains(f"{version_of(torch)}+cpu")
    assert torch.marker is not None and not torch.marker.evaluate({**environment_of("3.11.9"), "sys_platform": "win32"})


def test_script_prints_requirements_without_upper_bounds() -> None:
    script = runpy.run_path(str(ROOT / ".ci" / "without_upper_bounds.py"))
    newest = [Requirement(line) for line in script["requirements"](PROJECT["project"])]
    wanted = [*requirements_of(PROJECT["project"]["dependencies"]), *requirements_of(["turnwise[test]"])]
    assert sorted(map(str, newest)) == sorted(map(without_upper_bound, wanted))


def without_upper_bound(requirement: Requirement) -> str:
    lower = SpecifierSet([specifier for specifier in requirement.specifier if specifier.operator == ">="])
    return str(requirement).replace(str(requirement.specifier), str(lower))
