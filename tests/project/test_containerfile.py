"""The Containerfile names extras, stages and files that exist. Building it needs podman: make container."""

import re
import subprocess
import tomllib
from fnmatch import fnmatch

import pytest

from pages_for_tests import ROOT

TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")
STAGES = re.findall(r"^FROM \S+ AS (\w+)$", TEXT, re.MULTILINE)


def test_images_have_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    chosen = re.findall(r"^ARG EXTRAS=(\S+)$", TEXT, re.MULTILINE)
    assert len(chosen) == 2 and len({*chosen}) == 1
    assert {*chosen[0].split(",")} <= {*extras}


def test_stages_build_on_earlier_ones_and_end_with_the_cpu() -> None:
    assert STAGES == ["wheel", "runtime", "cuda", "cpu"]
    for used in re.findall(r"^FROM (\w+) AS|from=(\w+)", TEXT, re.MULTILINE):
        assert "".join(used) in STAGES


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_make_container_builds_a_stage(target: str) -> None:
    ran = subprocess.run(
        ["make", "--dry-run", "container", f"TARGET={target}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tag = "turnwise:cuda" if target == "cuda" else "turnwise"
    assert f"--file Containerfile --target {target} --tag {tag} ." in ran.stdout


def test_image_is_built_from_all_files_in_git() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a git repository")
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    ignored = [line.removeprefix("**/") for line in lines if not line.startswith("#")]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {part for file in tracked.splitlines() for part in file.split("/")}
    assert "src" in names
    assert [name for name in names if any(fnmatch(name, pattern) for pattern in ignored)] == []
