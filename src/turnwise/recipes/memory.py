"""From a configuration and a model to where everything goes: the memory plan of a run."""

import os
from typing import Any

import torch

from turnwise.algos.advantages import ADVANTAGES
from turnwise.config.schema import Config
from turnwise.engine.paged.runner import PREFILL_TOKENS
from turnwise.engine.paged.state import PAGE
from turnwise.models.loading.load import device_of
from turnwise.models.memory.estimate import CUDA_CONTEXT, MemoryEstimate
from turnwise.models.memory.plan import MemoryPlan, MemoryRequest, plan_memory
from turnwise.models.memory.shapes import model_shape

MICRO_TOKENS = 16384
"""Of one forward and backward pass, where no plan says otherwise."""
SWITCH = {"auto": None, "on": True, "off": False, "host": True, "device": False}
HOST_SHARE = 0.9
"""Of the host's memory, for optimiser states, at most."""


def memory_plan(config: Config, model: Any, *, imitates: bool = False) -> MemoryPlan:
    """For the device that the model is on. `imitates`: demonstrations, without a critic, a reference or a rival."""
    device = device_of(model)
    if device.type != "cuda":
        return plan_without_limits(config)
    needs = MemoryEstimate(shape=model_shape(model), compiled=config.system.compile)
    return plan_memory(needs, demand_of(config, imitates=imitates), device_room(device), host_room())


def plan_without_limits(config: Config) -> MemoryPlan:
    """As the settings say, and nothing special where they leave it open: memory of a CPU is not planned."""
    train = config.train
    return MemoryPlan(
        micro_tokens=train.micro_tokens or MICRO_TOKENS,
        pages=None,
        optimizer_on_host=bool(SWITCH[train.optimizer_state]),
        recompute=bool(SWITCH[train.recompute]),
        releases_cache=config.system.keep_cache == "off",
    )


def demand_of(config: Config, *, imitates: bool = False) -> MemoryRequest:
    algo, train, selfplay = config.algo, config.train, config.selfplay
    keeps = SWITCH[config.system.keep_cache]
    rival = selfplay.opponent == "past" or (selfplay.opponent == "self" and selfplay.ladder_games > 0)
    critic = ADVANTAGES[algo.advantage].needs_critic and config.critic.kind == "trunk"
    return MemoryRequest(
        slots=config.rollout.in_flight,
        max_context=config.rollout.max_tokens,
        page_size=PAGE,
        prefill_tokens=PREFILL_TOKENS,
        cache_share=config.system.cache_share,
        engines=2 if rival and not imitates else 1,
        critic=critic and not imitates,
        reference=algo.kl_coef > 0 and not imitates,
        muon=train.optimizer == "muon" and not imitates,
        micro_tokens=train.micro_tokens,
        optimizer_on_host=SWITCH[train.optimizer_state],
        recompute=SWITCH[train.recompute],
        releases_cache=None if keeps is None else not keeps,
    )


def device_room(device: torch.device) -> int:
    """Bytes that this process may have of a GPU: what is free, what it has already, and CUDA's own."""
    free, total = torch.cuda.mem_get_info(device)
    allowed = int(torch.cuda.get_per_process_memory_fraction(device) * total)
    return min(free + torch.cuda.memory_reserved(device), allowed) + CUDA_CONTEXT


def host_room() -> int | None:
    """Bytes of this machine that optimiser states may take; None where that cannot be asked."""
    try:
        return int(HOST_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return None
