"""Images between engine replicas, the driver and learner ranks: each is sent once, and none is missing or kept."""

import asyncio
import math
import os
import pickle
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_session_for_tests import fake_session
from slow_lake_for_tests import GATE, SlowLake

from episodes_for_tests import group_of, turn_of
from runs_for_tests import metrics, printed, quiet, small
from turnwise.core.errors import InfrastructureFailure
from turnwise.core.images import ImageSpan, image_hash, image_token_id
from turnwise.core.protocols import EngineStats
from turnwise.core.samples import Batch
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Trajectory
from turnwise.data.packing import pack
from turnwise.pictures.image_store import ImageStore
from turnwise.record.run_folder import RunFolder
from turnwise.run.train import train

pytest.importorskip("ray")

from ray.exceptions import ActorDiedError
from test_cluster_run import addresses, first_fork, numbers

from turnwise.cluster import actor_pool, images
from turnwise.cluster.engine_replica import EngineReplica, EpisodeJob, FinishedJobs, ReplicaParts
from turnwise.cluster.images import EpisodeImages, ImagePacker, ReceivedImages
from turnwise.cluster.learners import RemoteLearner
from turnwise.cluster.replica_pool import ReplicaPool
from turnwise.cluster.session import process_info
from visual_talks_for_tests import sample_of
from work_for_tests import wait_until

SLOW_LAKE = f"{Path(__file__).parent / 'slow_lake_for_tests.py'}:{SlowLake.__name__}"
KEY = EpisodeKey(run_seed=0, task=Task(env="look", seed=1), member=0, round=0, attempt=0)


def batch_with(*shown: bytes) -> Batch:
    """Return a batch of one sample with a token of each image."""
    return pack([sample_of([5, *(image_token_id(image_hash(each), 0) for each in shown), 6, 7], 2)])


def episode_with(*shown: bytes) -> Trajectory:
    """Return an episode with an image in each turn."""
    spans = [ImageSpan(hash=image_hash(each), start=1, end=2) for each in shown]
    turns = [replace(turn_of([5, image_token_id(span.hash, 0)], [6]), images=(span,)) for span in spans]
    return group_of([turns], 0).trajectories[0]


def test_packer_sends_each_image_once_and_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MEMORY_BYTES", 4)
    store, rank = ImageStore(), ReceivedImages()
    one, two, three, four = (store.put(data) for data in (b"1", b"22", b"3", b"44"))
    packer = ImagePacker(store)

    def send(*shown: bytes) -> list[str]:
        """Return the hashes that are sent, and check that the rank then has all images of the batch."""
        packed = packer.pack([batch_with(*shown), batch_with(*shown)])
        if packed is not None:
            rank.receive(pickle.loads(pickle.dumps(packed)))
        assert [rank.get(image_hash(each)) for each in shown] == list(shown)
        return [] if packed is None else list(packed.images)

    assert send(b"1", b"22") == sorted([one, two])
    assert send(b"1", b"22") == send() == []
    assert send(b"1", b"3") == [three]
    assert send(b"44") == [four]  # 6 bytes with those of the first call
    assert send(b"44", b"3") == []
    assert send(b"1") == [one]
    with pytest.raises(KeyError):
        rank.get(two)


def test_episode_images_are_forgotten_unless_a_later_episode_shows_them() -> None:
    store = EpisodeImages()
    old, again = store.put(b"old"), store.put(b"again")
    mark = store.mark()
    new = store.put(b"new")
    store.put(b"again")
    store.forget_until(mark)
    assert [key in store for key in (old, again, new)] == [False, True, True]
    store.forget_until(store.mark())
    assert [key in store for key in (old, again, new)] == [False] * 3


class Scripted:
    """A collector whose episodes show images, and end when `end` is set."""

    def __init__(self, store: EpisodeImages, *shown: bytes) -> None:
        self.store, self.shown, self.end = store, shown, asyncio.Event()

    async def episodes(self, keys: Sequence[EpisodeKey]) -> list[Trajectory]:
        for each in self.shown:
            self.store.put(each)
        await self.end.wait()
        return [episode_with(*self.shown)]


def test_replica_keeps_images_until_the_driver_has_them() -> None:
    async def scenario() -> None:
        store = EpisodeImages()
        collectors: dict[str, Any] = {"a": Scripted(store, b"both", b"a"), "b": Scripted(store, b"both", b"b")}

        async def close() -> None: ...

        replica = EngineReplica(torch.get_num_threads())
        engine: Any = SimpleNamespace(stats=EngineStats)
        parts = ReplicaParts(
            engine=engine, collectors=collectors, close=close, load_value_head=lambda _: None, images=store
        )
        await replica.start(lambda: parts)

        def held() -> set[bytes]:
            return {each for each in (b"a", b"b", b"both") if image_hash(each) in store}

        async def start(number: int, name: str) -> None:
            await replica.submit([EpisodeJob(number=number, collector=name, keys=(KEY,), lease=None)], [])
            await asyncio.sleep(0)

        await start(0, "a")
        await start(1, "b")
        collectors["a"].end.set()
        found = await replica.collect()
        assert found.images == {image_hash(b"both"), image_hash(b"a")}
        assert await replica.send_images([image_hash(b"a")]) == [b"a"]
        waiting = asyncio.create_task(replica.collect())
        await asyncio.sleep(0)
        assert held() == {b"b", b"both"}
        collectors["b"].end.set()
        assert (await waiting).images == {image_hash(b"both"), image_hash(b"b")}
        assert held() == {b"b", b"both"}
        await start(2, "a")
        await replica.collect()
        assert held() == {b"a", b"both"}
        collectors["a"].end = asyncio.Event()
        await start(3, "a")
        before = [EpisodeJob(number=4, collector="a", keys=(KEY,), lease=None)]
        await replica.submit(before, [3, 4])  # 4 is cancelled before it begins
        await asyncio.sleep(0.01)
        store.put(b"b")
        waiting = asyncio.create_task(replica.collect())
        await asyncio.sleep(0)
        assert held() == set()
        waiting.cancel()

    asyncio.run(scenario())


class FakeReplica:
    """A replica whose episode shows images, and which may be lost before it sends them."""

    def __init__(self, shown: Sequence[bytes], asked: list[bytes]) -> None:
        self.shown, self.asked, self.lost = {image_hash(each): each for each in shown}, asked, False
        self.sends = asyncio.Event()
        self.jobs: list[EpisodeJob] = []
        for name in ("start", "collect", "send_images"):
            setattr(self, name, SimpleNamespace(remote=getattr(self, f"_{name}")))
        self.submit = SimpleNamespace(remote=lambda jobs, cancelled: self.jobs.extend(jobs))

    async def _start(self, build: Any) -> Any:
        return process_info()

    async def _collect(self) -> FinishedJobs:
        while not self.jobs:
            await asyncio.sleep(0.001)
        results = [(job.number, pickle.dumps(["played"])) for job in self.jobs]
        self.jobs = []
        return FinishedJobs(results=results, images=set(self.shown), stats=EngineStats())

    async def _send_images(self, keys: Sequence[str]) -> list[bytes]:
        await self.sends.wait()
        if self.lost:
            raise ActorDiedError
        self.asked += [self.shown[key] for key in keys]
        return [self.shown[key] for key in keys]


@pytest.mark.parametrize("lost", [False, True])
def test_image_of_two_replicas_is_sent_by_one(monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    async def scenario() -> None:
        asked, store = list[bytes](), ImageStore()
        store.put(b"known")
        replicas = [FakeReplica([b"known", b"both", b"a"], asked), FakeReplica([b"both", b"b"], asked)]
        left = iter([*replicas, FakeReplica([], asked)])
        monkeypatch.setattr(ReplicaPool, "_launch", lambda pool, slot: next(left))

        def get(calls: Sequence[Any], timeout: float) -> list[Any]:
            for each in calls:
                each.close()
            return [process_info()] * len(calls)

        monkeypatch.setattr(actor_pool, "ray", SimpleNamespace(get=get))
        pool = ReplicaPool(fake_session(engines=2), pytest.fail, timeout_s=60, images=store, note=lambda text: None)
        first = asyncio.create_task(pool.run("training", [KEY]))
        await asyncio.sleep(0.02)
        second = asyncio.create_task(pool.run("training", [KEY]))
        replicas[1].sends.set()
        await asyncio.sleep(0.02)
        assert not first.done() and not second.done()  # the second waits for what the first is asked for
        replicas[0].lost = lost
        replicas[0].sends.set()
        if lost:
            with pytest.raises(InfrastructureFailure):
                await first
        else:
            assert await first == ["played"]
        assert await second == ["played"]
        assert Counter(asked) == Counter([b"both", b"b"] if lost else [b"both", b"b", b"a"])
        assert image_hash(b"both") in store and image_hash(b"b") in store

    asyncio.run(scenario())


SETTINGS: dict[str, Any] = {
    "env__kind": "frozen_lake",
    "env__params__observation": "image",
    "env__params__cell_pixels": 8,
    "env__params__max_turns": 3,
    "env__params__max_actions_per_turn": 1,
    "model__name": "tiny_vlm",
    "model__warmup_steps": 2,
    "eval__episodes": 2,
    "eval__every": 0,
    "train__steps": 2,
}


def shown_in(run: Path) -> set[str]:
    """Return the hashes of the images in all recorded episodes."""
    folder = RunFolder.open(run)
    rows = [folder.read_trajectory(row) for part in (None, "before", "after") for row in folder.read_index(part)]
    return {image["hash"] for row in rows for turn in row["turns"] for image in turn.get("images", ())}


def count_calls(monkeypatch: pytest.MonkeyPatch, cls: type, name: str, keys: Callable[[Any], Sequence[str]]) -> Counter:
    """Count the keys of all results of a method in this process."""
    counted, method = Counter[str](), getattr(cls, name)

    def count(*arguments: Any) -> Any:
        result = method(*arguments)
        counted.update(keys(result))
        return result

    monkeypatch.setattr(cls, name, count)
    return counted


@pytest.mark.parametrize(
    ("engines", "learners", "settings"),
    [
        pytest.param(2, 2, {"model__train_vision": True}, id="both"),
        pytest.param(1, 0, {"critic__kind": "head"}, id="engines", marks=pytest.mark.soak),
        pytest.param(0, 1, {"lora__rank": 2, "model__train_vision": True}, id="learners", marks=pytest.mark.soak),
    ],
)
def test_visual_cluster_run_equals_a_local_run(
    ray_cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engines: int,
    learners: int,
    settings: dict[str, Any],
) -> None:
    common = SETTINGS | settings
    train(small(tmp_path / "local", **common), console=quiet())
    sent = count_calls(monkeypatch, ImagePacker, "pack", lambda packed: list(packed.images) if packed else [])
    received = count_calls(monkeypatch, ImageStore, "put", lambda key: [key])
    cluster = {"cluster__engines": engines, "cluster__learners": learners, "cluster__cpus": 2}
    cluster |= {"cluster__address": ray_cluster.address}
    assert train(small(tmp_path / "ray", **common, **cluster), console=quiet())["finished"]
    ours, theirs = tmp_path / "ray/run", tmp_path / "local/run"
    assert addresses(ours) == addresses(theirs)
    fork = first_fork(ours, theirs)
    assert fork > 1
    for mine, other in zip(metrics(ours), metrics(theirs), strict=True):
        if mine["step"] < fork:
            assert numbers(mine) == pytest.approx(numbers(other), rel=2e-2, abs=2e-3, nan_ok=True)
    shown = shown_in(ours)
    assert shown and (shown == shown_in(theirs) or fork < math.inf)
    assert {f"{key}.png" for key in shown} == {file.name for file in (ours / "images").iterdir()}
    if engines:
        assert received == Counter(shown)
    if learners:
        assert sent and set(sent) <= shown
        assert set(sent.values()) == {1}


class ReplicaKiller:
    """Kills a replica in the second step while its episodes move, and one in the third before it sends its images."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.killed: list[str] = []
        self._gate = Path(os.environ[GATE])
        self._before_images = False
        self._thread = threading.Thread(target=self._kill_during_moves)
        init, receive = ReplicaPool.__init__, ReplicaPool._receive_images

        def remember(pool: ReplicaPool, *arguments: Any, **options: Any) -> None:
            init(pool, *arguments, **options)
            self._pool = pool

        async def kill_first(pool: ReplicaPool, actor: Any, keys: set[str]) -> None:
            if self._before_images and any(key not in pool._images for key in keys):  # type: ignore[operator]
                self._before_images = False
                self._kill(next(each for each in pool.replicas if each.actor is actor))
            await receive(pool, actor, keys)

        patch.setattr(ReplicaPool, "__init__", remember)
        patch.setattr(ReplicaPool, "_receive_images", kill_first)

    def __call__(self, row: Mapping[str, Any]) -> None:
        if row["step"] == 1:
            self._gate.mkdir()
            self._thread.start()
        elif row["step"] == 2:
            self._thread.join()
            self._before_images = True

    def _kill_during_moves(self) -> None:
        pids = [pid_of(each) for each in self._pool.replicas]
        try:
            if wait_until(lambda: all((self._gate / str(pid)).exists() for pid in pids), 120):
                self._kill(self._pool.replicas[0])
        finally:
            opened = self._gate.rename(self._gate.with_suffix(".open"))  # at once: processes still write to it
            shutil.rmtree(opened)

    def _kill(self, replica: Any) -> None:
        self.killed.append(f"engine replica {replica.index} ({replica.where}) was lost")
        os.kill(pid_of(replica), signal.SIGKILL)


def pid_of(replica: Any) -> int:
    return int(replica.where.rpartition(" ")[2])


@pytest.mark.soak
def test_visual_run_survives_killed_replicas(ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = SETTINGS | {"env__kind": SLOW_LAKE, "model__warmup_steps": 15, "train__steps": 3}  # most moves are valid
    train(small(tmp_path / "local", **common), console=quiet())
    received = count_calls(monkeypatch, ImageStore, "put", lambda key: [key])
    collected, collect = Counter[bool](), RemoteLearner._collect_weights

    def count(learner: RemoteLearner, *, trained: bool) -> Any:
        collected[trained] += 1
        return collect(learner, trained=trained)

    monkeypatch.setattr(RemoteLearner, "_collect_weights", count)
    cluster = {"cluster__engines": 2, "cluster__learners": 2, "cluster__cpus": 2}
    cluster |= {"cluster__address": ray_cluster.address}
    killer, console = ReplicaKiller(monkeypatch), quiet()
    assert train(small(tmp_path / "ray", **common, **cluster), console=console, on_step=killer)["finished"]
    text = " ".join(printed(console).split())
    assert len(killer.killed) == 2 and all(each in text for each in killer.killed)
    ours, theirs = tmp_path / "ray/run", tmp_path / "local/run"
    assert addresses(ours) == addresses(theirs)
    rows = [row for row in metrics(ours) if "rollout/infra_errors" in row]
    assert [row["step"] for row in rows if row["rollout/infra_errors"]] == [2, 3]
    fork = first_fork(ours, theirs)
    assert fork > 1
    for mine, other in zip(metrics(ours), metrics(theirs), strict=True):
        if mine["step"] < fork:
            assert numbers(mine) == pytest.approx(numbers(other), rel=2e-2, abs=2e-3, nan_ok=True)
    shown = shown_in(ours)
    assert shown and (shown == shown_in(theirs) or fork < math.inf)
    files = list((ours / "images").iterdir())
    assert {file.name for file in files} == {f"{key}.png" for key in shown}
    assert all(image_hash(file.read_bytes()) == file.stem for file in files)
    assert received == Counter(shown)
    assert collected == {True: 4, False: 1}  # the vision tower is frozen
