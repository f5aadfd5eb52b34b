"""A run killed with SIGKILL at any moment and resumed ends as one left alone."""

import json
import os
import random
from pathlib import Path

import killed_runs
import pytest

from processes_for_tests import Forked
from runs_for_tests import WARMUP_STEPS
from turnwise.envs.registry import load_spec
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import load_model
from turnwise.training.warmup import load_warmed_up

ROUNDS = int(os.environ.get("TURNWISE_SOAK", "0"))
"""`make soak` sets it: so many more runs, killed at one to three random moments each."""

SIGKILL = -9


def plan() -> list[list[tuple[str, float]]]:
    """While a checkpoint is written, while a line of the metrics is, and anywhere; then more by `make soak`."""
    rng = random.Random(os.environ.get("TURNWISE_SOAK_SEED"))
    runs: list[list[tuple[str, float]]] = [
        [("half", rng.randint(0, 3)), ("line", rng.randint(0, 2)), ("event", rng.uniform(0.0, 0.99))]
    ]
    for _ in range(ROUNDS):
        moments = [("event", rng.uniform(0.0, 0.99)), ("time", rng.uniform(0.0, 1.0)), ("half", rng.randint(0, 3))]
        runs.append([rng.choice([*moments, ("line", rng.randint(0, 9))]) for _ in range(rng.randint(1, 3))])
    return runs


@pytest.fixture(scope="module")
def warmed() -> None:
    """So that no kill costs the warm-up twice; what a kill in the middle of it leaves is another test's matter."""
    kind = load_spec("bandit")
    load_warmed_up(
        "tiny",
        [(kind, kind.check_params({}))],
        steps=WARMUP_STEPS,
        seed=0,
        load=lambda name: load_model(name, attn_implementation=ATTENTION),
        show=lambda *_: None,
    )


def test_killed_run_resumes_with_the_same_bits(warmed: None, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("w") as file, Forked(killed_runs.main, tmp_path, plan(), stdout=file.fileno()) as process:
        assert process.wait() == 0
    report = json.loads(output.read_text())
    assert any(".writing-" in event for event in report["events"]), "checkpoints are among what can be hit"
    for run in report["runs"]:
        assert set(run["statuses"]) <= {SIGKILL, 0}, run["moments"]
        assert run["moments"][0][0] == "time" or run["statuses"][0] == SIGKILL, run["moments"]
        assert {name: run[name] for name in report["plain"]} == report["plain"], run["moments"]
