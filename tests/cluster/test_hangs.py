"""Processes that hang are noticed and replaced, and the run ends as an undisturbed one."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from fake_session_for_tests import fake_session
from faults_for_tests import Fault, FaultyRun
from test_cluster_run import addresses, first_fork, numbers

from ray_nodes_for_tests import restore_nodes
from runs_for_tests import metrics, printed, quiet, small
from turnwise.cluster import deadlines, hang_watch, learners
from turnwise.cluster.deadlines import Deadlines
from turnwise.cluster.hang_watch import HangWatch
from turnwise.cluster.heartbeat import HEART, BeatingActor
from turnwise.cluster.learners import RemoteLearner
from turnwise.core.errors import LearnerLost
from turnwise.run.train import train
from work_for_tests import wait_until

SILENCE_S = 6.0
COMMON = {"env__kind": "frozen_lake", "train__steps": 4, "eval__every": 0, "eval__episodes": 4, "critic__kind": "head"}
CLUSTER = {"cluster__engines": 2, "cluster__learners": 2, "cluster__env_workers": 1, "cluster__cpus": 2}


def test_stopped_actors_are_replaced(
    ray_cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setattr(hang_watch, "SILENCE_S", SILENCE_S)
    restore_nodes(ray_cluster)
    train(small(tmp_path / "local", **COMMON), console=quiet())
    console = quiet()
    faulty = FaultyRun(
        monkeypatch,
        Fault(process="learner rank 1", fault="SIGSTOP", phase="update", after_step=1),
        Fault(process="engine replica 0", fault="SIGSTOP", phase="rollout", after_step=2),
        Fault(process="environment worker 0", fault="SIGSTOP", phase="rollout", after_step=3),
    )
    config = small(tmp_path / "ray", **COMMON, **CLUSTER, cluster__address=ray_cluster.address)
    assert train(config, console=console, on_step=faulty.on_step)["finished"]
    record_testsuite_property("seconds until a stopped process is noticed", faulty.noticed_s)
    text = " ".join(printed(console).split())
    assert text.count(", its process is stopped, as by SIGSTOP. ") == len(faulty.caused) == 3
    assert all(f"{fault.process} (" in text and f"process {pid})" in text for fault, pid in faulty.caused.items())
    assert_same_run(tmp_path / "ray/run", tmp_path / "local/run")


def assert_same_run(run: Path, other: Path) -> None:
    """Assert that both runs have the same episodes and, up to the first other token, the same metrics."""
    assert addresses(run) == addresses(other)
    ours, theirs = metrics(run), metrics(other)
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    fork = first_fork(run, other)
    for one, two in zip(ours, theirs, strict=True):
        if one["step"] < fork:
            assert numbers(one) == pytest.approx(numbers(two), rel=2e-2, abs=2e-3, nan_ok=True)


class Worker(BeatingActor):
    """An actor that computes with and without Python's lock."""

    def sleep(self, seconds: float) -> str:
        with self.during("sleep"):
            time.sleep(seconds)
        return "rested"

    def match_for_hours(self) -> None:
        with self.during("match"):
            re.match(r"(a*)*b", "a" * 40)


@pytest.fixture
def watch(ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HangWatch]:
    monkeypatch.setattr(hang_watch, "SILENCE_S", SILENCE_S)
    watch = HangWatch(tmp_path / "hangs")
    yield watch
    watch.close()


def start_worker(watch: HangWatch) -> Any:
    import ray

    actor = ray.remote(num_cpus=0, concurrency_groups={HEART: 1})(Worker).remote()
    watch.add(actor, "worker 0")
    ray.get(actor.sleep.remote(0))
    watch.note_started(actor)
    return actor


def test_process_that_works_for_long_is_not_hung(watch: HangWatch) -> None:
    import ray

    actor = start_worker(watch)
    assert ray.get(actor.sleep.remote(2 * SILENCE_S)) == "rested"
    assert watch.cause(actor) is None


def test_process_that_keeps_the_lock_of_python_is_hung(watch: HangWatch, tmp_path: Path) -> None:
    import ray
    from ray.exceptions import ActorDiedError

    actor = start_worker(watch)
    with pytest.raises(ActorDiedError):
        ray.get(actor.match_for_hours.remote(), timeout=120)
    (file,) = (tmp_path / "hangs").iterdir()
    cause = watch.cause(actor)
    assert cause is not None
    assert re.fullmatch(rf"no heartbeat for \d+ s .*, its stacks are in {re.escape(str(file))}", cause)
    assert "in match_for_hours" in file.read_text()


def test_stacks_of_a_process_that_answers_are_saved(watch: HangWatch, tmp_path: Path) -> None:
    actor = start_worker(watch)
    actor.sleep.remote(600)
    watched = watch._watched[actor]
    assert wait_until(lambda: watched.last is not None and "during sleep" in watched.last.activity, 60)
    watch.end([actor], "sleep did not end within 5 s")
    (file,) = (tmp_path / "hangs").iterdir()
    cause = watch.explain([actor])
    assert cause is not None
    assert cause.startswith("worker 0 (")
    assert "): sleep did not end within 5 s during sleep for " in cause
    assert "in sleep" in file.read_text()


class Silent:
    """An actor whose heartbeats never come."""

    def __init__(self) -> None:
        self.heartbeat = SimpleNamespace(remote=object)


def test_silence_while_this_process_was_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_watch, "ray", SimpleNamespace(wait=lambda asked, timeout: ([], asked)))
    clock = iter([0.0, 3600.0, 3600.0, 7200.0, 7200.0])
    monkeypatch.setattr(hang_watch.time, "monotonic", lambda: next(clock))
    watch, waits, actor = HangWatch.__new__(HangWatch), iter([False, False, True]), Silent()
    monkeypatch.setattr(hang_watch.threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
    watch.__init__(None)  # type: ignore[misc]
    watch.add(actor, "engine replica 0")
    watch.note_started(actor)
    watch._watched[actor].last = SimpleNamespace()  # type: ignore[assignment]
    watch._watched[actor].asked = object()
    watch._closing = SimpleNamespace(wait=lambda seconds: next(waits))  # type: ignore[assignment]
    watch._run()
    assert watch._watched[actor].silent_s == pytest.approx(4 * watch._period_s)
    assert watch.cause(actor) is None


def test_deadline_follows_earlier_calls() -> None:
    limits = Deadlines()
    assert limits.seconds("update") == deadlines.FIRST_S
    limits.note("update", 60)
    limits.note("update", 3)
    assert limits.seconds("update") == 600
    for _ in range(deadlines.LAST):
        limits.note("update", 3)
    assert limits.seconds("update") == deadlines.FLOOR_S
    assert limits.seconds("score") == deadlines.FIRST_S
    assert limits.expire("update") == "update did not end within 120 s, and earlier ones took 3.0 s at most"
    assert limits.seconds("update") == 2 * deadlines.FLOOR_S
    limits.forget()
    assert limits.seconds("update") == 2 * deadlines.FIRST_S


def test_call_of_ranks_that_does_not_end_loses_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, limits = list[str](), list[float]()
    session = fake_session()
    session.hangs = SimpleNamespace(
        end=lambda actors, cause: ended.append(cause), explain=lambda actors: f"learner rank 0: {ended[0]}"
    )

    def wait(calls: Any, num_returns: int, timeout: float) -> Any:
        limits.append(timeout)
        return [], calls

    monkeypatch.setattr(RemoteLearner, "_start", lambda learner, attempts: setattr(learner, "actors", []))
    monkeypatch.setattr(learners, "ray", SimpleNamespace(wait=wait))
    with pytest.raises(LearnerLost, match="learner rank 0: optimizer step did not end within 900 s"):
        RemoteLearner(session, pytest.fail, None)._wait([object()], "optimizer step")
    assert limits == [pytest.approx(900, abs=60)]
