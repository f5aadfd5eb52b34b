"""The Slurm and KubeRay examples of docs/scale.md: their commands pass a dry run, at the size of this machine."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from turnwise.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
SMALL = {"--model.name": "tiny", "--cluster.learners": "1", "--cluster.engines": "1", "--record.folder": "runs"}
"""Settings that replace the example's GPUs and models on this machine."""


def slurm_command() -> str:
    text = (EXAMPLES / "slurm.sh").read_text().replace("\\\n", " ")
    return next(line.strip() for line in text.splitlines() if line.strip().startswith("turnwise train math_code"))


def kuberay_command() -> str:
    job = yaml.safe_load((EXAMPLES / "kuberay.yaml").read_text())
    return str(job["spec"]["entrypoint"])


@pytest.mark.parametrize("read", [slurm_command, kuberay_command])
def test_example_passes_a_dry_run(
    read: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = shlex.split(read())
    assert program == "turnwise"
    for name, value in SMALL.items():
        if name in words:
            words[words.index(name) + 1] = value
    if "--cluster.address" in words:  # no cluster runs here
        start = words.index("--cluster.address")
        del words[start : start + 2]
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--cluster.cpus", "0.1", "--dry-run"]) in (0, None)
    printed = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "cluster" in printed and not list(tmp_path.iterdir())
