"""Whole runs with two engine replicas and two learner ranks, whose processes are killed."""

import json
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ray_nodes_for_tests import NODE
from runs_for_tests import episodes, metrics, printed, quiet, small
from turnwise.run.train import train
from work_for_tests import wait_until

SOAK = int(os.environ.get("TURNWISE_SOAK", "1"))
RANDOM = random.Random(SOAK)
KILLS = ["node"] if SOAK == 1 else RANDOM.sample(["replica", "rank", "node"] * 4, k=12)
"""Killed after step 1, 2, ... A node takes a replica and a rank with it; test_replicas.py kills a replica alone."""
LATEST_S = 0.0 if SOAK == 1 else 2.0
"""Kills come up to this time after the step before."""


class Killer:
    """Kills a process after each of the first steps, and measures how long its replacement takes."""

    def __init__(self, cluster: Any, patch: pytest.MonkeyPatch) -> None:
        from turnwise.cluster.learners import RemoteLearner
        from turnwise.cluster.replica_pool import ReplicaPool

        self.cluster = cluster
        self.killed: list[str] = []
        self.recovery_s: dict[str, list[float]] = {}
        """Seconds from a kill until the replacement is ready, by what was killed."""
        self._threads: list[threading.Thread] = []
        self._over = False
        for cls in (RemoteLearner, ReplicaPool):
            patch.setattr(cls, "__init__", self._remember(cls.__init__))

    def _remember(self, init: Any) -> Any:
        def remember(owner: Any, *arguments: Any, **options: Any) -> None:
            init(owner, *arguments, **options)
            setattr(self, type(owner).__name__, owner)

        return remember

    def __call__(self, row: Mapping[str, Any]) -> None:
        if row["step"] == len(self._threads) + 1 <= len(KILLS):
            kind = KILLS[row["step"] - 1]
            if kind == "node" and len(self.cluster.worker_nodes) < 2:
                self._add_node()
            self._threads.append(threading.Thread(target=self._kill, args=(kind,)))
            self._threads[-1].start()
            if not LATEST_S:
                self._threads[-1].join()

    def _add_node(self) -> None:
        """Add a node in place of the next one that is killed. Ray can do that in the main thread only."""
        from turnwise.cluster.session import keep_sigterm

        with keep_sigterm():
            self.cluster.add_node(**NODE)

    def _kill(self, kind: str) -> None:
        time.sleep(RANDOM.uniform(0, LATEST_S))
        replaced = getattr(self, f"kill_{kind}")()
        self.killed.append(kind)
        began = time.perf_counter()
        if LATEST_S and wait_until(lambda: replaced() or self._over, 300) and not self._over:
            self.recovery_s.setdefault(kind, []).append(round(time.perf_counter() - began, 1))

    def end(self) -> None:
        """Wait for the kills; the run is over, so nothing more is replaced."""
        self._over = True
        for each in self._threads:
            each.join()

    def kill_replica(self) -> Callable[[], bool]:
        def live() -> list[str]:
            return [each.where for each in self.ReplicaPool.replicas if each.live]  # type: ignore[attr-defined]

        assert wait_until(live, 300)
        victim = RANDOM.choice(live())
        os.kill(int(victim.rpartition(" ")[2]), signal.SIGKILL)
        return lambda: len(live()) == 2 and victim not in live()

    def kill_rank(self) -> Callable[[], bool]:
        before = self.RemoteLearner.pids  # type: ignore[attr-defined]
        os.kill(RANDOM.choice(before), signal.SIGKILL)
        return lambda: self.RemoteLearner.pids != before  # type: ignore[attr-defined]

    def kill_node(self) -> Callable[[], bool]:
        """Kill a node with actors. Another takes its place: a third one that is idle, or a new one."""
        from ray.util.placement_group import placement_group_table

        group = self.RemoteLearner._session.group  # type: ignore[attr-defined]
        used = set(placement_group_table(group)["bundles_to_node_id"].values())
        node = next(each for each in self.cluster.worker_nodes if each._node_id in used)
        before = self.RemoteLearner.pids  # type: ignore[attr-defined]
        self.cluster.remove_node(node, allow_graceful=False)
        return lambda: self.RemoteLearner.pids != before  # type: ignore[attr-defined]


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that depend neither on who was killed nor on whether weights are copied to engines."""
    others = ("rollout/infra_errors", "engine/published_mb")
    return {k: v for k, v in row.items() if isinstance(v, int | float) and k not in others}


@pytest.mark.parametrize("staleness", [0] if SOAK == 1 else [0, 1])
def test_cluster_run_survives_kills_and_learns_as_a_local_run(
    ray_cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_testsuite_property: Callable[[str, object], None],
    staleness: int,
) -> None:
    steps = len(KILLS) + (1 if SOAK == 1 else 3)
    common = {"env__kind": "frozen_lake", "train__steps": steps, "eval__every": 0, "eval__episodes": 4}
    common |= {"critic__kind": "head"}  # its values come from the replicas
    train(small(tmp_path / "local", **common), console=quiet())
    cluster = {"cluster__engines": 2, "cluster__learners": 2, "cluster__cpus": 2}
    cluster |= {"cluster__address": ray_cluster.address, "rollout__max_staleness": staleness}
    console, killer = quiet(), Killer(ray_cluster, monkeypatch)
    summary = train(small(tmp_path / "ray", **common, **cluster), console=console, on_step=killer)
    killer.end()
    assert summary["finished"]
    assert sorted(killer.killed) == sorted(KILLS)
    record_testsuite_property(f"recovery_s, staleness {staleness}", killer.recovery_s)
    text = printed(console)
    assert "engine replica" in text
    assert "a learner rank was lost" in text
    assert addresses(tmp_path / "ray/run") == addresses(tmp_path / "local/run")
    lanes = {"engine replica 0", "engine replica 1", "learner rank 0", "learner rank 1", "training loop"}
    assert lanes <= lanes_of(tmp_path / "ray/run").keys()
    assert any("is replaced" in activities for activities in lanes_of(tmp_path / "ray/run").values())
    local, remote = metrics(tmp_path / "local/run"), metrics(tmp_path / "ray/run")
    assert [row["step"] for row in remote] == [row["step"] for row in local]
    fork = first_fork(tmp_path / "ray/run", tmp_path / "local/run") if not staleness else 0
    assert fork > 1 or staleness
    for ours, theirs in zip(remote, local, strict=True):
        if ours["step"] < fork:
            assert numbers(ours) == pytest.approx(numbers(theirs), rel=2e-2, abs=2e-3, nan_ok=True)


def test_environment_workers_serve_an_engine_in_this_process(
    ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turnwise.cluster.env_worker_pool import WorkerCollector

    common = {"train__steps": 1, "eval__every": 0, "eval__episodes": 2, "critic__kind": "head"}
    train(small(tmp_path / "local", **common), console=quiet())
    keys: list[Any] = []

    async def run(collector: Any, called: Any) -> Any:
        keys.extend(called)
        return await episodes_on_workers(collector, called)

    episodes_on_workers = WorkerCollector.episodes
    monkeypatch.setattr(WorkerCollector, "episodes", run)
    cluster = {"cluster__env_workers": 1, "cluster__address": ray_cluster.address}
    assert train(small(tmp_path / "ray", **common, **cluster), console=quiet())["finished"]
    assert addresses(tmp_path / "ray/run") == addresses(tmp_path / "local/run")
    assert len(keys) == len(addresses(tmp_path / "ray/run"))
    assert lanes_of(tmp_path / "ray/run")["environment worker 0"] == {"environments"}
    local, remote = metrics(tmp_path / "local/run"), metrics(tmp_path / "ray/run")
    if first_fork(tmp_path / "ray/run", tmp_path / "local/run") == math.inf:
        assert numbers(remote[-1]) == pytest.approx(numbers(local[-1]), rel=2e-2, abs=2e-3, nan_ok=True)


def lanes_of(run: Path) -> dict[str, set[str]]:
    """Return the activities that are recorded for each worker."""
    rows = [json.loads(line) for line in (run / "spans.jsonl").read_text().splitlines()]
    lanes: dict[str, set[str]] = {}
    for lane, activity, *_ in (span for row in rows for span in row["spans"]):
        lanes.setdefault(lane, set()).add(activity)
    return lanes


def first_fork(run: Path, other: Path) -> float:
    """Return the first step with an episode of other tokens; infinity if there is none.

    A retried episode runs in a batch of another composition, which changes the last bits of probabilities: see
    `count_forks` in test_replicas.py.
    """
    ours, theirs = episodes(run), episodes(other)
    pairs = zip(sorted(ours, key=address), sorted(theirs, key=address), strict=True)
    return min((one["step"] for one, two in pairs if one["said"] != two["said"]), default=math.inf)


def address(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return str(row.get("evaluation")), row["step"], row["group"], row["member"], row["seed"]


def addresses(run: Path) -> set[tuple[Any, ...]]:
    """Return the addresses of a run's episodes; one that occurs twice fails."""
    rows = [address(row) for row in episodes(run)]
    assert len(set(rows)) == len(rows)
    return set(rows)
