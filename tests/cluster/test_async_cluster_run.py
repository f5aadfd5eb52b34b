"""Asynchronous runs on the cluster that SIGTERM stops in the middle of a step, and that are resumed."""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from slow_lake_for_tests import GATE, SlowLake, open_gate

from runs_for_tests import episodes, metrics, printed, quiet, small
from turnwise.cli.signals import StopSignals
from turnwise.config.schema import Config
from turnwise.run.environment_mix import build_environment_mix, build_task_source
from turnwise.run.train import train
from turnwise.training.checkpoints import step_folders, step_of

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
STOPS = 1 if SOAK == 1 else 6
STALENESS = 2
STEPS = STALENESS + 3 if SOAK == 1 else 60
LATEST_S = 0.3 if SOAK == 1 else 2.0
"""SIGTERM comes up to this time after a step."""
SLOW_LAKE = f"{Path(__file__).parent / 'slow_lake_for_tests.py'}:{SlowLake.__name__}"


def sigterm_after_first_step(delay_s: float) -> Callable[[Mapping[str, Any]], None]:
    """Return a callback that has this process receive SIGTERM some time after a run's first step.

    It holds up all moves from then on, so that the run cannot end before.
    """
    sent: list[threading.Timer] = []

    def on_step(row: Mapping[str, Any]) -> None:
        if not sent:
            Path(os.environ[GATE]).mkdir()
            sent.append(threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGTERM)))
            sent[0].start()

    return on_step


def planned(config: Config) -> Counter[tuple[int, int, int]]:
    """Return the episodes that the run has to train on: step, seed of the task, member."""
    source, rollout = build_task_source(config, build_environment_mix(config.env, config.agent)), config.rollout
    drawn = [(step, task.seed) for step in range(config.train.steps) for task in source.draw(step, rollout.groups)]
    return Counter((step + 1, seed, member) for step, seed in drawn for member in range(rollout.group_size))


@pytest.mark.soak  # test_async_run.py stops and resumes a run without a cluster
def test_stopped_asynchronous_cluster_run_resumes_without_loss(ray_cluster: Any, tmp_path: Path) -> None:
    rng, engines = random.Random(SOAK), 1 if SOAK == 1 else 2
    config = small(
        tmp_path,
        env__kind=SLOW_LAKE,
        train__steps=STEPS,
        eval__every=0,
        eval__episodes=2,
        algo__advantage="grpo",
        cluster__engines=engines,
        cluster__learners=1,
        cluster__env_workers=1,
        cluster__cpus=2,
        cluster__address=ray_cluster.address,
        rollout__max_staleness=STALENESS,
        checkpoint__every=100,
    )
    saved = [0]
    for _ in range(STOPS):
        stop = sigterm_after_first_step(rng.uniform(0, LATEST_S))
        with pytest.raises(KeyboardInterrupt, match="resume with"), StopSignals().handled():
            train(config, console=quiet(), resume=len(saved) > 1, on_step=stop)
        open_gate()
        saved.append(max(map(step_of, step_folders(tmp_path / "run/checkpoints"))))
    assert all(one < two for one, two in pairwise(saved))
    console = quiet()
    summary = train(config, console=console, resume=True)
    assert (summary["finished"], summary["steps"]) == (True, STEPS), printed(console)
    trained = Counter(
        (row["step"], row["seed"], row["member"]) for row in episodes(tmp_path / "run", only_training=True)
    )
    assert trained == planned(config)
    rows = [row for row in metrics(tmp_path / "run") if "rollout/staleness" in row]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert max(row["rollout/staleness_max"] for row in rows) == STALENESS
