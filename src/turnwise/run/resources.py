"""Resources of a run on this machine: memory plan and CPU threads."""

import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from turnwise.algos.critics import TrunkCriticSettings, UtteranceCriticSettings
from turnwise.config.resources import SystemConfig
from turnwise.config.schema import Config
from turnwise.config.training import Muon, TrainConfig
from turnwise.core.errors import UserError
from turnwise.models.loading.load import device_of
from turnwise.models.memory.estimate import CUDA_CONTEXT, MemoryEstimate
from turnwise.models.memory.plan import MemoryPlan, MemoryRequest, plan_memory
from turnwise.models.memory.shapes import model_shape
from turnwise.rollout.opponents import PolicyOpponent

MICRO_TOKENS = 16384
"""Tokens per forward and backward pass where nothing sets another number."""
SWITCH = {"auto": None, "on": True, "off": False, "host": True, "device": False}
HOST_SHARE = 0.9
"""Largest share of the host's memory for optimizer states."""


def memory_plan(config: Config, model: Any, *, sft: bool = False, frozen: int = 0) -> MemoryPlan:
    """Plan the memory of the model's device. SFT has no critic, reference model or opponent.

    `frozen`: number of models that play roles and are not trained.
    """
    device = device_of(model)
    if device.type != "cuda":
        return plan_without_limits(config.train, releases_cache=config.system.keep_cache == "off")
    needs = MemoryEstimate(shape=model_shape(model), compiled=config.system.compile)
    return plan_memory(needs, memory_request(config, sft=sft, frozen=frozen), device_memory(device), host_memory())


def plan_without_limits(train: TrainConfig, *, releases_cache: bool = False) -> MemoryPlan:
    """Return the plan of the settings and their defaults, for a CPU, whose memory is not planned."""
    return MemoryPlan(
        micro_tokens=train.micro_tokens or MICRO_TOKENS,
        pages=None,
        optimizer_on_host=bool(SWITCH[train.optimizer_state]),
        recompute=bool(SWITCH[train.recompute]),
        releases_cache=releases_cache,
    )


def memory_request(config: Config, *, sft: bool = False, frozen: int = 0) -> MemoryRequest:
    algo, train, selfplay, engine = config.algo, config.train, config.selfplay, config.engine
    keeps = True if config.rollout.max_staleness else SWITCH[config.system.keep_cache]
    has_opponent = isinstance(selfplay.opponent, PolicyOpponent) and selfplay.opponent.plays_snapshots
    critic_settings = config.critic
    own = isinstance(critic_settings, UtteranceCriticSettings) and critic_settings.owns_trunk
    encoder = algo.estimator.trains_critic and own  # a trunk critic; its target copy is like a reference
    critic = encoder or (algo.needs_critic and isinstance(critic_settings, TrunkCriticSettings))
    copies_weights = config.rollout.max_staleness > 0 or not engine.shares_weights
    return MemoryRequest(
        slots=config.rollout.in_flight,
        max_context=config.rollout.max_tokens,
        cache_share=engine.gpu_memory_utilization,
        engines=1 + frozen + (has_opponent and not sft),
        engine_share=engine.gpu_share,
        critic=critic and not sft,
        reference=(algo.needs_reference or encoder) and not sft,
        weights_copy=engine.gpu_share is None and copies_weights and not sft,
        muon=isinstance(train.optimizer, Muon) and not sft,
        micro_tokens=train.micro_tokens,
        optimizer_on_host=SWITCH[train.optimizer_state],
        recompute=SWITCH[train.recompute],
        releases_cache=None if keeps is None else not keeps,
    )


def device_memory(device: torch.device) -> int:
    """Return the bytes of a GPU that this process may use: free, already reserved, and of the CUDA context."""
    free, total = torch.cuda.mem_get_info(device)
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    return min(free + torch.cuda.memory_reserved(device), allowed) + CUDA_CONTEXT


def host_memory() -> int | None:
    """Return the bytes of this machine that optimizer states may use; None if unknown."""
    try:
        return int(HOST_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return None


MIN_THREADS = 256
"""Number of threads that may be set on any machine whose process limit allows it."""
PIDS_MAX = Path("/sys/fs/cgroup/pids.max")


def check_threads(system: SystemConfig) -> None:
    if system.threads > (most := max_threads()):
        raise UserError(
            f"system.threads {system.threads}: this machine allows at most {most}. Set it to {default_threads()}, or "
            "raise the process limit."
        )


def cores() -> int:
    return os.cpu_count() or 1


def default_threads() -> int:
    """Return the number of threads for system.threads 0."""
    return min(cores(), max_threads())


def max_threads() -> int:
    """Return the largest number of threads that a run may ask for.

    More than the number of cores: results depend on the number of threads, so a run that is resumed on a smaller
    machine keeps it. At most half of the processes that the user or the container may have: OpenMP crashes if it
    cannot start a thread.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limits = [allowed] if allowed != resource.RLIM_INFINITY else []
    with suppress(OSError, ValueError):  # no cgroup, or its limit is "max"
        limits.append(int(PIDS_MAX.read_text()))
    return max(1, min([max(MIN_THREADS, 4 * cores()), *(limit // 2 for limit in limits)]))
