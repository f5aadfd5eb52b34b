"""Wire a run to Ray: engine replicas, environment workers and learner ranks in place of those of this process."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.algos.critics import HeadCriticSettings
from turnwise.cluster.engine_replica import ReplicaParts
from turnwise.cluster.env_worker_pool import EnvWorkerPool, WorkerCollector
from turnwise.cluster.images import EpisodeImages
from turnwise.cluster.learners import BuildRank, RemoteLearner
from turnwise.cluster.replica_pool import ReplicaCollector, ReplicaPool
from turnwise.cluster.session import ClusterSession, open_session
from turnwise.cluster.weights import StoredWeights, put_weights
from turnwise.concurrency.spans import SpanLog
from turnwise.config.schema import Config
from turnwise.core.errors import LearnerLost, Outage
from turnwise.core.learner import Learner
from turnwise.core.protocols import ValueEngine, WeightSource
from turnwise.envs.spec import EnvSpec
from turnwise.models.critic import HeadCritic
from turnwise.models.loading.catalogue import WARMED_UP
from turnwise.models.loading.load import LoadedModel, resolve_device
from turnwise.models.memory.plan import MemoryPlan
from turnwise.models.weights import copy_parameters
from turnwise.pictures.image_store import ImageStore
from turnwise.record.resume_command import spell_resume
from turnwise.rollout.collect import Collector, GroupCollector
from turnwise.run.build import PolicyStack, build_policy_stack, build_renderer
from turnwise.run.build_learner import build_learner, build_sharded_learner, share_value_head
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.environments_in_actors import build_actor_environments, build_env_worker
from turnwise.run.find_model import use_own_adapter
from turnwise.run.load_policy import load_policy
from turnwise.training.learner import LocalLearner

TRAINING, GREEDY, EVALUATION = "training", "greedy", "evaluation"
"""Names of a replica's collectors."""
HANGS_FOLDER = "hangs"
"""Folder of a run for the stacks of hung actors."""
MAX_LOSSES = 20
"""Times that learner ranks may be lost in a run."""


@contextmanager
def open_cluster(config: Config, advice: str = "", stacks: Path | None = None) -> Iterator[ClusterSession]:
    """Open the cluster of a run. `advice`: printed if Ray itself is lost. `stacks`: folder for those of hung actors."""
    gpus = config.engine.gpus if resolve_device(config.model.device).type == "cuda" else 0
    with open_session(config.cluster, gpus_per_engine=gpus, advice=advice, stacks=stacks) as session:
        yield session


@dataclass(kw_only=True)
class Actors:
    """Engine and learner of a run, at least one of them on a cluster."""

    stack: PolicyStack
    learner: Learner
    note: Callable[[str], None]
    workers: EnvWorkerPool | None = None
    losses: int = 0

    def record_spans(self, spans: SpanLog | None) -> None:
        """Let the actors' work be recorded here from now on."""
        for part in (self.stack.engine, self.learner, self.workers):
            if isinstance(part, ReplicaPool | RemoteLearner | EnvWorkerPool):
                part.spans = spans

    def restart_learner(self, loss: LearnerLost) -> None:
        """Start the ranks again, with the initial weights."""
        assert isinstance(self.learner, RemoteLearner)
        self.losses += 1
        if self.losses > MAX_LOSSES:
            raise Outage(f"A learner rank was lost {self.losses} times. Last failure: {loss}")
        self.note(f"a learner rank was lost: {loss}. All {self.learner.ranks} restart from the last checkpoint.")
        self.learner.restart()


@contextmanager
def build_actors(
    config: Config,
    environments: EnvironmentMix,
    loaded: LoadedModel,
    plan: MemoryPlan,
    run: Path,
    note: Callable[[str], None],
) -> Iterator[Actors]:
    """Start the actors of a run, and build in this process what is not on the cluster."""
    learner: LocalLearner | RemoteLearner
    with ExitStack() as opened:
        advice = f"Resume with: {spell_resume(run)}"
        session = opened.enter_context(open_cluster(config, advice, run / HANGS_FOLDER))
        if config.cluster.learners:
            learner = remote = RemoteLearner(session, _rank_builder(config, loaded, plan, run), _image_store(loaded))
            opened.callback(remote.close)
        else:
            learner = build_learner(config.algo, config.critic, config.train, loaded.model, plan)
        workers = None
        if config.cluster.env_workers:
            workers = opened.enter_context(open_env_workers(session, config, environments, run, note))
        if config.cluster.engines:
            stack = opened.enter_context(open_replica_stack(session, config, environments, loaded, run, note, workers))
            if _samples_values(config):
                assert isinstance(stack.engine, ReplicaPool)
                stack.engine.publish_value_head(learner.value_head)
        else:
            stack = build_policy_stack(config, environments, loaded, plan.pages)
            if isinstance(learner, LocalLearner):
                share_value_head(config.rollout, stack.engine, learner)
            if workers is not None:
                stack = _use_workers(stack, workers)
        yield Actors(stack=stack, learner=learner, note=note, workers=workers)


@contextmanager
def open_env_workers(
    session: ClusterSession, config: Config, environments: EnvironmentMix, run: Path, note: Callable[[str], None]
) -> Iterator[EnvWorkerPool]:
    """Start the environment workers."""
    build = partial(build_env_worker, _actor_config(config, run), _unnamed_spec(environments), Path.cwd())
    workers = EnvWorkerPool(session, build, timeout_s=config.rollout.timeout_s, note=note)
    try:
        yield workers
    finally:
        workers.close()


def _use_workers(stack: PolicyStack, workers: EnvWorkerPool) -> PolicyStack:
    """Return the stack with collectors whose environments are on workers."""

    def use(collector: GroupCollector) -> WorkerCollector:
        assert isinstance(collector, Collector), "check_conflicts rejects agents on a cluster"
        return WorkerCollector(
            collector=collector,
            workers=workers,
            in_flight=collector.in_flight,
            attempts=collector.attempts,
            run_seed=collector.run_seed,
        )

    return replace(stack, collector=use(stack.collector), greedy=use(stack.greedy), evaluator=use(stack.evaluator))


def _samples_values(config: Config) -> bool:
    """Return whether replicas get the head of a critic on the policy's trunk: see `share_value_head`."""
    has_head = config.algo.needs_critic and isinstance(config.critic, HeadCriticSettings)
    return has_head and not config.rollout.max_staleness


def _rank_builder(config: Config, loaded: LoadedModel, plan: MemoryPlan, run: Path) -> BuildRank:
    """Return what builds the learner of a rank. A warmed-up model is sent; others are loaded by rank 0."""
    warmed_up = config.model.name in WARMED_UP and config.model.warmup_steps > 0
    weights = put_weights(loaded.model.named_parameters()) if warmed_up else None
    return partial(build_rank, _actor_config(config, run), plan, weights)


def _image_store(loaded: LoadedModel) -> ImageStore | None:
    return None if loaded.images is None else loaded.images.store


def build_rank(config: Config, plan: MemoryPlan, weights: StoredWeights | None, rank: int) -> LocalLearner:
    """Build the learner of a rank in its process.

    A single rank has nothing to shard, and takes as long as the learner of one process only without FSDP2. With
    optimizer states on the host it keeps FSDP2, which also offloads parameters and gradients.
    """
    build = partial(build_sharded_learner, config.algo, config.critic, config.train)
    device, compiles = resolve_device(config.model.device), config.system.compile
    if rank > 0:
        return build(None, plan, device=device, compiles=compiles)
    loaded, _ = load_policy(config, EnvironmentMix(specs={}, entries=()), lambda done, total: None)
    if weights is not None:
        copy_parameters(loaded.model, weights)
    if config.cluster.learners == 1 and not plan.optimizer_on_host:
        return build_learner(config.algo, config.critic, config.train, loaded.model, plan)
    return build(loaded.model, plan, device=device, compiles=compiles)


@contextmanager
def open_replica_stack(
    session: ClusterSession,
    config: Config,
    environments: EnvironmentMix,
    loaded: LoadedModel,
    run: Path,
    note: Callable[[str], None],
    workers: EnvWorkerPool | None = None,
) -> Iterator[PolicyStack]:
    """Start the engine replicas; yield collectors that run their episodes there. `workers` run the environments."""
    in_flight = math.ceil(config.rollout.in_flight / config.cluster.engines)  # of a replica
    build = partial(
        build_replica, _actor_config(config, run, in_flight=in_flight), _unnamed_spec(environments), Path.cwd()
    )
    pool = ReplicaPool(session, build, timeout_s=config.rollout.timeout_s, images=_image_store(loaded), note=note)

    def collector(name: str, run_seed: int) -> ReplicaCollector:
        rollout = config.rollout
        return ReplicaCollector(
            pool=pool,
            workers=workers,
            name=name,
            in_flight=rollout.in_flight,
            attempts=rollout.attempts,
            run_seed=run_seed,
        )

    try:
        yield PolicyStack(
            renderer=build_renderer(config.rollout, loaded),
            engine=pool,
            collector=collector(TRAINING, config.seed),
            greedy=collector(GREEDY, config.seed),
            evaluator=collector(EVALUATION, 0),
            pages=None,
        )
    finally:
        pool.close()


def _actor_config(config: Config, run: Path, **rollout: Any) -> Config:
    """Return the settings of an actor, which prepares no weights of its own."""
    config = use_own_adapter(config, run)
    return config.model_copy(
        update={
            "rollout": config.rollout.model_copy(update={"max_staleness": 0, **rollout}),
            "model": config.model.model_copy(update={"warmup_steps": 0}),
        }
    )


def _unnamed_spec(environments: EnvironmentMix) -> EnvSpec | None:
    """Return the spec of a class in no file, which actors cannot load by name."""
    first = next(iter(environments.specs.values()))
    return replace(first, services=None) if first.id.startswith("python:") else None


def build_replica(config: Config, spec: EnvSpec | None, folder: Path) -> ReplicaParts:
    """Build engine and environments in a replica's process. `folder`: where relative paths start."""
    environments, services = build_actor_environments(config, spec, folder)
    loaded, _ = load_policy(config, environments, lambda done, total: None)
    images = None
    if loaded.images is not None:
        loaded.images.store = images = EpisodeImages()
    stack = build_policy_stack(config, environments, loaded)
    critic = HeadCritic(loaded.model).requires_grad_(False)

    def load_value_head(weights: WeightSource) -> None:
        copy_parameters(critic, weights)
        if isinstance(stack.engine, ValueEngine):
            stack.engine.set_value_head(critic)

    return ReplicaParts(
        engine=stack.engine,
        collectors={TRAINING: stack.collector, GREEDY: stack.greedy, EVALUATION: stack.evaluator},
        close=services.close,
        load_value_head=load_value_head,
        images=images,
    )
