"""Memory of a learner rank and of an engine replica, per GPU. FSDP2 divides weights, gradients and states by the ranks.

A single rank has a learner without FSDP2, unless its optimizer states are on the host.

`MemoryItem.rollout` is memory during rollouts, `update` during updates. A learner's GPU has both phases; an engine
frees its KV cache only where it shares its GPU with a learner.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnwise.models.memory.estimate import CUDA_CONTEXT, FLOAT32_BYTES, MemoryEstimate
from turnwise.models.memory.plan import EFFICIENT_TOKENS, RESERVED_SHARE, MemoryItem, MemoryRequest

GATHERED_LAYERS = 2
"""Whole layers on a rank at the same time: the one that computes, and the next one."""
MICRO_TOKENS = (32_768, 16_384, EFFICIENT_TOKENS)
"""Tokens per pass to choose from, the fastest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerMemory:
    items: tuple[MemoryItem, ...]
    micro_tokens: int
    recompute: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    items: tuple[MemoryItem, ...]
    slots: int
    """Episodes whose contexts the KV cache holds."""


def usable(device_bytes: int) -> int:
    """Return the memory that a plan may use."""
    return int(device_bytes * (1 - RESERVED_SHARE))


def peak(items: Sequence[MemoryItem]) -> int:
    return max(sum(item.rollout for item in items), sum(item.update for item in items))


def fit_learner(estimate: MemoryEstimate, request: MemoryRequest, ranks: int, available: int) -> LearnerMemory | None:
    """Return the fastest way to train in the available memory: many tokens per pass, kept activations; None: none."""
    recomputes = (False, True) if request.recompute is None else (request.recompute,)
    tokens = [max(request.max_context, micro_tokens) for micro_tokens in MICRO_TOKENS]
    ways = [(recompute, count) for recompute in recomputes for count in tokens]
    ways += [(recompute, request.max_context) for recompute in recomputes]
    for recompute, count in ways:
        count = request.micro_tokens or count
        items = tuple(_learner_items(estimate, request, ranks, count, recompute))
        if peak(items) <= available:
            return LearnerMemory(items=items, micro_tokens=count, recompute=recompute)
    return None


def _learner_items(
    estimate: MemoryEstimate, request: MemoryRequest, ranks: int, tokens: int, recompute: bool
) -> Iterator[MemoryItem]:
    shape = estimate.shape
    critic = shape.trunk_trained if request.critic else 0
    trained = shape.trained + critic
    frozen = estimate.parameters if shape.adapter else 0
    moments = estimate.moments(shape.trained, request.muon) + estimate.moments(critic, False)

    def shard(name: str, size: int, *, in_rollout: bool = True) -> MemoryItem:
        """A rank's part of what FSDP2 shards; on the host if the request says so."""
        share = math.ceil(size / ranks)
        if request.optimizer_on_host:
            return MemoryItem(name, host=share)
        return MemoryItem(name, rollout=share if in_rollout else 0, update=share)

    reference = shape.trained * FLOAT32_BYTES if shape.adapter else estimate.parameters
    yield MemoryItem("CUDA context", rollout=CUDA_CONTEXT, update=CUDA_CONTEXT)
    yield shard("trained parameters (float32)", trained * FLOAT32_BYTES)
    if ranks == 1 and not request.optimizer_on_host and shape.parameter_bytes < FLOAT32_BYTES:
        yield shard("trained parameters (model's dtype)", trained * shape.parameter_bytes)
    yield shard("frozen parameters", frozen)
    yield shard("reference model", reference if request.reference else 0)
    yield shard("optimizer moments", moments)
    yield shard("gradients (float32)", trained * FLOAT32_BYTES, in_rollout=False)
    yield MemoryItem("gathered layers", update=_gathered(estimate) if ranks > 1 else 0)
    yield MemoryItem("activations", update=estimate.activations(tokens, recompute))
    yield MemoryItem("logits and one layer", update=estimate.working(tokens, recompute))


def _gathered(estimate: MemoryEstimate) -> int:
    """Bytes of whole layers and of the embeddings, which stay whole during a pass, with their gradients."""
    shape = estimate.shape
    embeddings = shape.vocabulary * shape.hidden + max(0, shape.parameters - shape.trunk)
    layer = (shape.parameters - embeddings) // shape.layers
    gradients = 0 if shape.adapter else shape.parameter_bytes + FLOAT32_BYTES
    return embeddings * (shape.parameter_bytes + gradients) + layer * (
        GATHERED_LAYERS * shape.parameter_bytes + gradients
    )


def fit_engine(
    estimate: MemoryEstimate,
    request: MemoryRequest,
    *,
    tensor_parallel: int,
    slots: int,
    episode_tokens: float,
    available: int,
) -> EngineMemory | None:
    """Return the memory of one GPU of a replica that runs up to `slots` episodes; None if it does not fit.

    The KV cache is paged: it holds as many episodes as their expected length allows, and at least one of the longest.
    """
    weights = math.ceil(estimate.parameters / tensor_parallel)
    graphs = math.ceil(estimate.graphs(request.prefill_tokens, slots) / tensor_parallel)
    page = estimate.kv_cache(request.page_size) / tensor_parallel
    pages = int((available - CUDA_CONTEXT - weights - graphs) // page)
    if pages < request.pages_per_slot + 1:
        return None
    pages_per_episode = math.ceil(episode_tokens / request.page_size)
    wanted = max(slots * pages_per_episode, request.pages_per_slot) + 1
    pages = min(pages, wanted)
    items = (
        MemoryItem("CUDA context", rollout=CUDA_CONTEXT, update=CUDA_CONTEXT),
        MemoryItem("engine's weights", rollout=weights, update=weights),
        MemoryItem("CUDA graphs", rollout=graphs),
        MemoryItem("KV cache", rollout=math.ceil(pages * page)),
    )
    return EngineMemory(items=items, slots=max(1, min(slots, (pages - 1) // pages_per_episode)))
