"""Whole runs with two engine replicas and two learner ranks, whose processes are killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ray_nodes_for_tests import NODE
from runs_for_tests import episodes, metrics, printed, quiet, small
from turnwise.recipes.run import train
from work_for_tests import wait_until

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
KILLS = ("replica", "rank") if SOAK == 1 else ("replica", "rank", "node", "rank", "replica") * 2
"""Killed after step 1, 2, ..."""
MARK = "TURNWISE_TEST_MARK"


class Killer:
    """Kills a process after each of the first steps, and knows the newest actors of the run."""

    def __init__(self, cluster: Any, patch: pytest.MonkeyPatch) -> None:
        from turnwise.cluster.learners import RemoteLearner
        from turnwise.cluster.replica_pool import ReplicaPool

        self.cluster, self.killed = cluster, []
        for cls in (RemoteLearner, ReplicaPool):
            patch.setattr(cls, "__init__", self._remember(cls.__init__))

    def _remember(self, init: Any) -> Any:
        def remember(owner: Any, *arguments: Any, **options: Any) -> None:
            init(owner, *arguments, **options)
            setattr(self, type(owner).__name__, owner)

        return remember

    def __call__(self, row: Mapping[str, Any]) -> None:
        if len(self.killed) < len(KILLS) and row["step"] == len(self.killed) + 1:
            self.killed.append(target := KILLS[row["step"] - 1])
            getattr(self, f"kill_{target}")()

    def kill_replica(self) -> None:
        where = self.ReplicaPool.replicas[0].where  # type: ignore[attr-defined]
        os.kill(int(where.rpartition(" ")[2]), signal.SIGKILL)

    def kill_rank(self) -> None:
        os.kill(self.RemoteLearner.pids[1], signal.SIGKILL)  # type: ignore[attr-defined]

    def kill_node(self) -> None:
        self.cluster.remove_node(self.cluster.worker_nodes and next(iter(self.cluster.worker_nodes)), False)
        self.cluster.add_node(**NODE)


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that do not depend on who was killed."""
    return {k: v for k, v in row.items() if isinstance(v, int | float) and k != "rollout/infra_errors"}


def test_cluster_run_survives_kills_and_learns_as_a_local_run(
    ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = len(KILLS) + 1
    common = {"env__kind": "frozen_lake", "train__steps": steps, "eval__every": 0, "eval__episodes": 4}
    train(small(tmp_path / "local", **common), console=quiet())
    cluster = {"cluster__engines": 2, "cluster__learners": 2, "cluster__cpus": 2}
    cluster |= {"cluster__address": ray_cluster.address}
    console, killer = quiet(), Killer(ray_cluster, monkeypatch)
    summary = train(small(tmp_path / "ray", **common, **cluster), console=console, on_step=killer)
    assert summary["finished"]
    assert tuple(killer.killed) == KILLS
    text = printed(console)
    assert "engine replica 0 (" in text
    assert "a learner rank was lost" in text
    local, remote = metrics(tmp_path / "local/run"), metrics(tmp_path / "ray/run")
    assert [row["step"] for row in remote] == [row["step"] for row in local]
    for ours, theirs in zip(map(numbers, remote), map(numbers, local), strict=True):
        assert ours == pytest.approx(theirs, rel=2e-2, abs=2e-3, nan_ok=True)
    assert addresses(tmp_path / "ray/run") == addresses(tmp_path / "local/run")


def addresses(run: Path) -> set[tuple[Any, ...]]:
    """Return the addresses of a run's episodes; one that occurs twice fails."""
    rows = [(row.get("evaluation"), row["step"], row["group"], row["member"], row["seed"]) for row in episodes(run)]
    assert len(set(rows)) == len(rows)
    return set(rows)


def marked_processes(mark: str) -> list[str]:
    """Return the commands of all processes with this mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it ended, or is another user's
            continue
    return [command for command in found if command]  # a zombie has none


@pytest.mark.parametrize("number", [signal.SIGKILL] if SOAK == 1 else [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_stopped_driver_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    pytest.importorskip("ray")
    mark = uuid4().hex
    options = {
        "--cluster.engines": "1",
        "--model.warmup_steps": "1",
        "--train.steps": "1000",
        "--eval.episodes": "2",
        "--rollout.groups": "2",
        "--rollout.group_size": "2",
        "--train.mini_batch": "4",
        "--record.folder": str(tmp_path),
        "--record.name": "run",
    }
    command = [
        sys.executable,
        "-m",
        "turnwise",
        "train",
        "frozen_lake",
        *(part for pair in options.items() for part in pair),
    ]
    driver = subprocess.Popen(
        command,
        env={**os.environ, MARK: mark, "RAY_AUTH_MODE": "disabled"},
        stdout=(tmp_path / "output").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    log = tmp_path / "run/metrics.jsonl"

    def trains() -> bool:
        assert driver.poll() is None, (tmp_path / "output").read_text()
        return log.exists() and any(json.loads(line)["step"] > 1 for line in log.read_text().splitlines())

    try:
        assert wait_until(trains, 300)
        assert any("raylet" in each for each in marked_processes(mark))
        os.killpg(driver.pid, number) if number is signal.SIGINT else driver.send_signal(number)
        driver.wait(300)
        assert wait_until(lambda: not marked_processes(mark), 300), marked_processes(mark)
    finally:
        driver.kill()
