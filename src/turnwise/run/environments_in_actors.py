"""Environments in the processes of Ray actors. Needs no torch, so that environment workers start quickly."""

import os
from contextlib import suppress
from pathlib import Path

from turnwise.cluster.env_worker import WorkerParts
from turnwise.config.schema import Config
from turnwise.envs.spec import EnvSpec
from turnwise.rewards.services import RewardServices
from turnwise.run.environment_mix import EnvironmentMix, build_environment_mix


def build_actor_environments(
    config: Config, spec: EnvSpec | None, folder: Path
) -> tuple[EnvironmentMix, RewardServices]:
    """Build the environments of a run, and what their rewards share. `folder`: where relative paths start."""
    with suppress(OSError):  # another machine may not have it, and needs it only for relative paths
        os.chdir(folder)
    services = RewardServices()
    return build_environment_mix(config.env, config.agent, spec).with_services(services), services


def build_env_worker(config: Config, spec: EnvSpec | None, folder: Path) -> WorkerParts:
    environments, services = build_actor_environments(config, spec, folder)
    return WorkerParts(make_env=environments.make, close=services.close)
