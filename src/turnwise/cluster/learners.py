"""Learner over rank actors: each method is called on all ranks with the same arguments, and rank 0's result is used."""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import ray
import torch
import torch.distributed as dist
from ray.exceptions import GetTimeoutError, RayTaskError
from ray.util.serialization import deregister_serializer
from torch import Tensor

from turnwise.cluster.deadlines import FIRST_S, Deadlines
from turnwise.cluster.heartbeat import BeatingActor
from turnwise.cluster.images import ImagePacker, PackedImages, ReceivedImages
from turnwise.cluster.placement import ActorSlot
from turnwise.cluster.session import (
    LOSSES,
    ClusterSession,
    ProcessInfo,
    cause_of,
    check_versions,
    describe_loss,
    process_info,
    start_error,
)
from turnwise.cluster.weights import (
    PackedWeights,
    ReceivedWeights,
    RemoteWeights,
    StoredWeights,
    pack_weights,
    put_weights,
    send_tensors_as_arrays,
    unpack_weights,
)
from turnwise.concurrency.spans import SpanLog
from turnwise.core.errors import LearnerLost, UserError
from turnwise.core.learner import LossTerm, Needs, Scores, StepSettings
from turnwise.core.protocols import WeightSource
from turnwise.core.samples import Batch, TrainBatch
from turnwise.models.vision.encoder import image_encoder
from turnwise.pictures.image_store import ImageStore
from turnwise.training.learner import LocalLearner

START_S = 900.0
"""Longest time for the ranks to be placed and to load the model."""
COLLECTIVE_S = 8 * FIRST_S
"""Longest time that ranks wait for each other. A deadline of the call that they work on comes first."""
PING_S = 10.0
"""Time for the ranks to answer after one has failed."""

RESTARTS = 5
"""Attempts to restart the ranks: a dead node is not known as such at once."""

BuildRank = Callable[[int], LocalLearner]
"""Builds the learner of a rank, once the process group exists."""


class LearnerRank(BeatingActor):
    """Ray actor with one rank of the learner. Its methods run one at a time, in one thread, beside its heartbeat."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        send_tensors_as_arrays()
        self._learner: LocalLearner | None = None
        self._images = ReceivedImages()

    def open_store(self, ranks: int) -> tuple[str, int]:
        """Open the store through which the ranks find each other; return its address. For rank 0."""
        host = ray.util.get_node_ip_address()
        self._store = dist.TCPStore(host, 0, ranks, is_master=True, wait_for_workers=False)
        return host, self._store.port

    def join(self, rank: int, ranks: int, host: str, port: int) -> ProcessInfo:
        """Join the process group."""
        self._rank = rank
        if rank > 0:
            self._store = dist.TCPStore(host, port, ranks, is_master=False)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=self._store,
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=COLLECTIVE_S),
        )
        return process_info()

    def build(self, build: BuildRank) -> float:
        """Build the learner; return its `max_grad_norm`."""
        with self.during("loading the model"):
            self._learner = build(self._rank)
        if (encoder := image_encoder(self._learner.model)) is not None:
            encoder.processor.store = self._images
        return self._learner.max_grad_norm

    def call(self, method: str, *arguments: Any, **options: Any) -> tuple[Any, int]:
        """Call the learner; return rank 0's result and the number of skipped steps."""
        with self.during(name_call(method)):
            result = getattr(self._ready, method)(*arguments, **options)
        return result if self._rank == 0 else None, self._ready.skipped_steps

    def receive_images(self, packed: PackedImages) -> None:
        self._images.receive(packed)

    def load_weights(self, packed: PackedWeights | None) -> None:
        with self.during("load weights"):
            self._ready.load_weights(ReceivedWeights(unpack_weights(packed or {})))

    def pack_weights(self, *, trained: bool) -> tuple[PackedWeights | None, None]:
        """Return rank 0's weights, and as a second object that they were collected. Every rank takes part."""
        with self.during("collect weights"):
            packed = pack_weights(self._ready.named_weights(trained=trained))
        return packed if self._rank == 0 else None, None

    @property
    def _ready(self) -> LocalLearner:
        assert self._learner is not None, "build comes first"
        return self._learner


def name_call(method: str) -> str:
    """Return what the ranks do in a call of the learner, in words."""
    return "optimizer step" if method == "step" else method.replace("_", " ")


class RemoteLearner:
    """The `Learner` of the training loop. If a rank is lost it raises LearnerLost; `restart` then makes new ranks."""

    def __init__(self, session: ClusterSession, build: BuildRank, images: ImageStore | None) -> None:
        """`images`: store with the images of all batches; None if the model reads text only."""
        self._session, self._build, self._images = session, build, images
        self._skipped_steps = 0
        self._deadlines = Deadlines()
        self.spans: SpanLog | None = None
        """Gets the times of the ranks' work."""
        self._start(attempts=1)

    def _start(self, attempts: int) -> None:
        self._frozen: StoredWeights | None = None
        """The ranks' frozen weights, once they have been collected."""
        for attempt in range(1, attempts + 1):
            send_tensors_as_arrays()
            slots = self._session.placement.learners
            self.actors = [self._launch(rank, slot) for rank, slot in enumerate(slots)]
            try:
                self._join_and_build()
                return
            except (*LOSSES, RayTaskError, GetTimeoutError) as error:
                killed = self._session.hangs.explain(self.actors)
                self.close()
                if killed is not None and attempt == attempts:
                    raise UserError(f"{killed[0].upper()}{killed[1:]}.") from error
                if attempt == attempts or isinstance(error, RayTaskError):
                    raise start_error("A learner rank", error) from error

    def _join_and_build(self) -> None:
        self._packer = None if self._images is None else ImagePacker(self._images)
        ranks = len(self.actors)
        host, port = ray.get(self.actors[0].open_store.remote(ranks), timeout=START_S)
        joining = [actor.join.remote(rank, ranks, host, port) for rank, actor in enumerate(self.actors)]
        processes: list[ProcessInfo] = ray.get(joining, timeout=START_S)
        for info in processes:
            check_versions(info)
        self.pids = [info.pid for info in processes]
        self._max_grad_norm, *_ = ray.get([actor.build.remote(self._build) for actor in self.actors], timeout=START_S)
        for actor in self.actors:
            self._session.hangs.note_started(actor)

    def _launch(self, rank: int, slot: ActorSlot) -> Any:
        return self._session.launch(LearnerRank, slot, f"learner rank {rank}", slot.threads)

    def restart(self) -> None:
        """Replace all ranks, with the initial weights: those that are left have only a part of the step."""
        self.close()
        self._deadlines.forget()
        self._start(attempts=RESTARTS)

    def close(self) -> None:
        deregister_serializer(Tensor)  # the program around this run may send tensors of its own
        for actor in self.actors:
            self._session.kill(actor)

    @property
    def ranks(self) -> int:
        return len(self.actors)

    @property
    def max_grad_norm(self) -> float:
        return self._max_grad_norm

    @property
    def skipped_steps(self) -> int:
        return self._skipped_steps

    def begin_step(self, settings: StepSettings) -> None:
        self._call("begin_step", settings)

    def score(self, batches: Sequence[Batch], needs: Needs) -> list[Scores]:
        self._send_images(batches)
        return self._call("score", list(batches), needs)

    def forward_backward(self, batches: Iterable[TrainBatch], *, tokens: bool = False) -> list[dict[str, Tensor]]:
        batches = list(batches)
        self._send_images([batch.batch for batch in batches])
        return self._call("forward_backward", batches, tokens=tokens)

    def step(self, *, rate_scale: float = 1.0) -> dict[str, float]:
        return self._call("step", rate_scale=rate_scale)

    def gradient_norm(self, batches: Sequence[TrainBatch], term: LossTerm) -> float:
        self._send_images([batch.batch for batch in batches])
        return self._call("gradient_norm", list(batches), term)

    def _send_images(self, batches: Sequence[Batch]) -> None:
        packed = None if self._packer is None else self._packer.pack(batches)
        if packed is not None:
            stored = ray.put(packed)
            self._wait([actor.receive_images.remote(stored) for actor in self.actors])

    def weights(self) -> WeightSource:
        """Collect the weights on rank 0. They stay in the object store until someone reads them."""
        if self._frozen is None:
            self._frozen = self._collect_weights(trained=False)
        return RemoteWeights(trained=self._collect_weights(trained=True), frozen=self._frozen)

    def _collect_weights(self, *, trained: bool) -> StoredWeights:
        calls = [actor.pack_weights.options(num_returns=2).remote(trained=trained) for actor in self.actors]
        self._wait([done for _, done in calls], "collect weights")
        return StoredWeights(calls[0][0])

    def value_head(self) -> dict[str, Tensor]:
        return self._call("value_head")

    def load_weights(self, weights: WeightSource) -> None:
        """Load the weights on rank 0, which distributes them."""
        self._frozen, packed = None, put_weights(weights.named_parameters()).ref
        self._wait(
            [actor.load_weights.remote(None if rank else packed) for rank, actor in enumerate(self.actors)],
            "load weights",
        )

    def check_finite(self, when: str) -> None:
        self._call("check_finite", when)

    def save_model(self, folder: Path, tokenizer: Any) -> None:
        self._call("save_model", folder.absolute(), tokenizer)

    def save_state(self, folder: Path) -> None:
        self._call("save_state", folder.absolute())

    def load_state(self, folder: Path, *, skipped_steps: int) -> None:
        self._call("load_state", folder.absolute(), skipped_steps=skipped_steps)

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call all ranks; large arguments go through the object store once."""
        stored = [ray.put(argument) for argument in arguments]
        calls = [actor.call.remote(method, *stored, **options) for actor in self.actors]
        results = self._wait(calls, name_call(method))
        result, self._skipped_steps = results[0]
        return result

    def _wait(self, calls: Sequence[Any], activity: str = "receive images") -> list[Any]:
        """Return all results. An error of one rank may be the consequence of another one's death, so look for that.

        `activity`: what the ranks do, in the spans and deadlines.
        """
        pending, began, limit_s = list(calls), time.perf_counter(), self._deadlines.seconds(activity)
        try:
            while pending:
                left_s = max(0.0, began + limit_s - time.perf_counter())
                done, pending = ray.wait(pending, num_returns=1, timeout=left_s)
                if not done:
                    self._end_hung(activity)
                ray.get(done)
                if self.spans is not None:
                    rank = calls.index(done[0])
                    self.spans.add(f"learner rank {rank}", activity, time.perf_counter() - began)
            self._deadlines.note(activity, time.perf_counter() - began)
            return ray.get(list(calls))
        except LOSSES as error:
            raise self._lost(error) from error
        except RayTaskError as error:
            self._check_alive()
            raise cause_of(error) from error

    def _end_hung(self, activity: str) -> NoReturn:
        """Kill the ranks, which answer but do not end a call. The stacks show which one the others wait for."""
        self._session.hangs.end(self.actors, self._deadlines.expire(activity))
        raise LearnerLost(self._session.hangs.explain(self.actors))

    def _lost(self, error: Exception) -> LearnerLost:
        return LearnerLost(self._session.hangs.explain(self.actors) or describe_loss(error))

    def _check_alive(self) -> None:
        """Raise LearnerLost if a rank is dead or gives no heartbeat."""
        answers = {actor.heartbeat.remote(): actor for actor in self.actors}
        done, silent = ray.wait(list(answers), num_returns=len(answers), timeout=PING_S)
        for answer in done:
            try:
                ray.get(answer)
            except LOSSES as error:
                raise self._lost(error) from error
        if silent:
            hung = [answers[answer] for answer in silent]
            self._session.hangs.end(hung, f"no heartbeat for {PING_S:.0f} s")
            raise LearnerLost(self._session.hangs.explain(hung))
