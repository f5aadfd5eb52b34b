"""Every benchmark parses its arguments; a small form of it runs to its table (`make soak`)."""

import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pages_for_tests import ROOT
from turnwise.cli.main import main

FOLDER = ROOT / "benchmarks"
BENCHMARKS = sorted(file.stem for file in FOLDER.glob("*.py") if 'if __name__ == "__main__"' in file.read_text())
OTHER_SIDES = ("trl_side", "vllm_side")
"""Programs that benchmarks start in environments of their own."""
TINY = "--rollout.groups=2 --rollout.group_size=4 --model.warmup_steps=15"
TINY_RUN = f"{TINY} --train.mini_batch=8 --eval.episodes=4"

SMALL = {
    "algorithms": (
        "--out runs --recipe bandit --vary algo.loss --values ppo,gspo --seeds 0 --steps 1 --jobs 1 "
        f"--picture losses.svg -- {TINY_RUN}"
    ),
    "before_after": "evaluation lake.gif",
    "busy_cpu": f"--steps 2 --repeats 1 {TINY}",
    "cluster_overhead": f"--steps 2 --repeats 1 --recipe bandit {TINY}",
    "cluster_sizes": "--gpus 8",
    "collapse": f"--out runs --seeds 0 --picture collapse.svg -- --train.steps=2 --eval.episodes=4 {TINY}",
    "drawing": "frozen_lake --states 3",
    "environments": "bandit --quick",
    "forking": "--context 64 --forks 2 --repeats 1",
    "gateway_load": "--concurrent 4 --agents 8 --turns 2 --model-seconds 0.05",
    "harbor_learning": "--out runs --small",
    "math_answers": "--repeats 2",
    "openenv_overhead": "--episodes 4 --turns 2",
    "retrieval": "--seconds 0.2",
    "rollout_cpu": "--threads 1 --repeats 1 --new-tokens 2 --batch 128",
    "sandbox": "--sessions 4 --calls 8 --at-once 2",
    "simulate_check": "--steps 4 --staleness 0 --repeats 1",
    "slow_tools": "--episodes 32 --in-flight 16",
    "soundness": "bandit --tasks 2",
    "staleness": "speed --steps 1 --staleness 0 1",
    "start_up": "--repeats 1",
    "tool_learning": (
        "--out runs --seeds 0 --picture tools.svg -- --train.steps=2 --rollout.groups=8 --train.mini_batch=8 "
        "--eval.episodes=4"
    ),
    "viewer": "--steps 20 --episodes 2 --keys 4",
    "viewer_runs": "--runs 4 --steps 4",
    "viewer_scroll": "--steps 20 --seconds 1",
    "vision_gpu": "--repeats 1 --small",
}
"""Arguments with which a benchmark takes seconds to a minute."""
NEEDS_GPU = {
    "learner_gpu": "--repeats 1",
    "memory_gpu": "--case 1.5b --rounds 1",
    "rollout_gpu": "--repeats 1",
}
NEEDS_TRL = {
    "step_cpu": "--repeats 1 --warm-up 1 --updates 1 --new-tokens 2",
    "step_gpu": "--repeats 1 --groups 2 --new-tokens 2 --no-vllm",
}
"""Benchmarks that compare with TRL, in the Python interpreter that TURNWISE_TRL_PYTHON names."""


def test_every_benchmark_has_a_small_form() -> None:
    assert sorted([*SMALL, *NEEDS_GPU, *NEEDS_TRL, *OTHER_SIDES]) == BENCHMARKS


@pytest.mark.parametrize("name", [*SMALL, *NEEDS_GPU, *NEEDS_TRL])
def test_benchmark_parses_its_arguments(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert end.value.code == 0 and "usage:" in capsys.readouterr().out


def run_small(name: str, arguments: str, folder: Path, **environment: str) -> str:
    """Run the benchmark as a user does, in another folder; return what it printed."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), *shlex.split(arguments)]
    variables = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "160", "HF_HUB_OFFLINE": "1"} | environment
    ran = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=3600)
    logs = "".join(file.read_text()[-2000:] for file in folder.rglob("*.log")) if ran.returncode else ""
    assert ran.returncode == 0, ran.stderr + logs
    return ran.stdout


@pytest.mark.soak
@pytest.mark.parametrize("name", SMALL)
def test_small_benchmark_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "before_after":
        monkeypatch.chdir(tmp_path)
        small = ["--train.steps=1", *TINY_RUN.split()]
        assert main(["train", "frozen_lake", *small, "--name", "lake"]) == 0
        models = ["runs/lake/base", "runs/lake", "frozen_lake"]
        assert main(["eval", *models, "--episodes", "4", "--out", "evaluation"]) == 0
    printed = run_small(name, SMALL[name], tmp_path, SLOW_TOOLS_LIMIT_S="0.1")
    pictures = [word for word in SMALL[name].split() if word.endswith((".svg", ".gif"))]
    assert all((tmp_path / picture).stat().st_size > 100 for picture in pictures)
    assert printed.strip() or pictures


@pytest.mark.soak
@pytest.mark.parametrize("name", NEEDS_GPU)
def test_small_gpu_benchmark_runs(name: str, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip(f"{name} needs a CUDA device")
    assert run_small(name, NEEDS_GPU[name], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", NEEDS_TRL)
def test_small_trl_benchmark_runs(name: str, tmp_path: Path) -> None:
    python = os.environ.get("TURNWISE_TRL_PYTHON")
    if python is None:
        pytest.skip(f"{name} compares with TRL: set TURNWISE_TRL_PYTHON to a Python interpreter that has it")
    if name.endswith("_gpu") and not torch.cuda.is_available():
        pytest.skip(f"{name} needs a CUDA device")
    assert run_small(name, f"--trl-python {python} {NEEDS_TRL[name]}", tmp_path)
