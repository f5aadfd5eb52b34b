"""Wire a run to Ray: engine replicas in place of the engine of this process."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from turnwise.cluster.engine_replica import ReplicaParts
from turnwise.cluster.replica_pool import ReplicaCollector, ReplicaPool
from turnwise.cluster.session import ClusterSession, open_session
from turnwise.config.schema import Config
from turnwise.envs.spec import EnvSpec
from turnwise.models.loading.load import LoadedModel, resolve_device
from turnwise.recipes.build import PolicyStack, build_policy_stack, load_policy
from turnwise.recipes.environment_mix import EnvironmentMix, build_environment_mix
from turnwise.recipes.sources import use_own_adapter
from turnwise.render.renderer import Renderer
from turnwise.rewards.services import RewardServices

TRAINING, GREEDY, EVALUATION = "training", "greedy", "evaluation"
"""Names of a replica's collectors."""


@contextmanager
def open_cluster(config: Config) -> Iterator[ClusterSession]:
    with open_session(config.cluster, uses_gpus=resolve_device(config.model.device).type == "cuda") as session:
        yield session


@contextmanager
def open_replica_stack(
    session: ClusterSession,
    config: Config,
    environments: EnvironmentMix,
    loaded: LoadedModel,
    run: Path,
    note: Callable[[str], None],
) -> Iterator[PolicyStack]:
    """Start the engine replicas; yield collectors that run their episodes there."""
    first = next(iter(environments.specs.values()))
    spec = replace(first, services=None) if first.id.startswith("python:") else None
    build = partial(build_replica, _replica_config(config, run), spec, Path.cwd())
    pool = ReplicaPool(session, build, timeout_s=config.rollout.timeout_s, note=note)

    def collector(name: str, run_seed: int) -> ReplicaCollector:
        rollout = config.rollout
        return ReplicaCollector(
            pool=pool, name=name, in_flight=rollout.in_flight, attempts=rollout.attempts, run_seed=run_seed
        )

    try:
        yield PolicyStack(
            renderer=Renderer(loaded.tokenizer, loaded.stop_ids, config.rollout.prefix),
            engine=pool,
            collector=collector(TRAINING, config.seed),
            greedy=collector(GREEDY, config.seed),
            evaluator=collector(EVALUATION, 0),
            pages=None,
        )
    finally:
        pool.close()


def _replica_config(config: Config, run: Path) -> Config:
    """Return the settings of a replica: its share of the episodes, and nothing that prepares weights of its own."""
    config = use_own_adapter(config, run)
    in_flight = math.ceil(config.rollout.in_flight / config.cluster.engines)
    return config.model_copy(
        update={
            "rollout": config.rollout.model_copy(update={"in_flight": in_flight, "max_staleness": 0}),
            "model": config.model.model_copy(update={"warmup_steps": 0}),
        }
    )


def build_replica(config: Config, spec: EnvSpec | None, folder: Path) -> ReplicaParts:
    """Build engine and environments in a replica's process. `folder`: where relative paths start."""
    with suppress(OSError):  # another machine may not have it, and needs it only for relative paths
        os.chdir(folder)
    services = RewardServices()
    environments = build_environment_mix(config, spec).with_services(services)
    loaded, _ = load_policy(config, environments, lambda done, total: None)
    stack = build_policy_stack(config, environments, loaded)
    return ReplicaParts(
        engine=stack.engine,
        collectors={TRAINING: stack.collector, GREEDY: stack.greedy, EVALUATION: stack.evaluator},
        close=services.close,
    )
