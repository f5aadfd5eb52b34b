"""Decide where parameters, states, caches and activations go before anything is allocated.

The cheapest option that fits is chosen, in this order: everything on the device; fewer tokens per pass; recomputed
activations; the engine's cache released during updates; optimizer states on the host.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from turnwise.core.errors import UserError
from turnwise.models.memory.estimate import CUDA_CONTEXT, FLOAT32_BYTES, GIB, MemoryEstimate

MAX_TOKENS, EFFICIENT_TOKENS, TOKENS_STEP = 65_536, 8_192, 1_024
"""Tokens per pass: more than the first gain nothing, fewer than the second leave the device idle; search step."""
PAGE = 64
"""Positions per page of the KV cache, which a kernel reads at once."""
PREFILL_TOKENS = 16_384
"""Maximum of new tokens per forward pass of an engine."""
RESERVED_SHARE = 0.08
"""Share of the device memory that stays free for fragmentation and for what the estimate does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """Requirements of a run. Fields that are None are decided by the plan."""

    slots: int
    max_context: int
    """Tokens of the longest context."""
    cache_share: float
    """Upper bound of the KV cache as a share of the memory that models leave free."""
    page_size: int = PAGE
    """Positions per page of the KV cache."""
    prefill_tokens: int = PREFILL_TOKENS
    engines: int = 1
    """2 if a frozen opponent has its own model and engine."""
    engine_share: float | None = None
    """Share of the device for an engine that manages its own memory, such as vLLM; None: a KV cache in pages."""
    critic: bool = False
    """Whether a separate critic model is trained."""
    reference: bool = False
    weights_copy: bool = False
    """Whether the engine has its own copy of the policy's weights, outside `engine_share`."""
    muon: bool = False
    micro_tokens: int | None = None
    optimizer_on_host: bool | None = None
    recompute: bool | None = None
    releases_cache: bool | None = None

    @property
    def max_pages(self) -> int:
        """Pages that all slots together can use, plus the padding page."""
        return self.slots * self.pages_per_slot + 1

    @property
    def pages_per_slot(self) -> int:
        return -(-self.max_context // self.page_size)


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """Bytes of one item: on the device during rollouts, on the device during updates, and on the host."""

    name: str
    rollout: int = 0
    update: int = 0
    host: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    micro_tokens: int
    """Tokens per forward and backward pass."""
    pages: int | None
    """Pages of the engine's cache; None: the engine decides."""
    optimizer_on_host: bool
    """Whether master weights and optimizer states live in host memory."""
    recompute: bool
    """Whether the backward pass recomputes activations."""
    releases_cache: bool
    """Whether the engine releases its KV cache and graphs before each update."""
    items: tuple[MemoryItem, ...] = ()
    device_bytes: int = 0
    """Memory of the device that the process may use."""

    @property
    def rollout(self) -> int:
        return sum(item.rollout for item in self.items)

    @property
    def update(self) -> int:
        return sum(item.update for item in self.items)

    @property
    def host(self) -> int:
        return sum(item.host for item in self.items)

    @property
    def fits(self) -> bool:
        return max(self.rollout, self.update) <= self.device_bytes * (1 - RESERVED_SHARE)

    def describe(self) -> str:
        """Return the decisions in one line."""
        choices = [
            f"{self.micro_tokens:,} tokens per pass",
            "activations recomputed" if self.recompute else "activations kept",
            "KV cache released during updates" if self.releases_cache else "KV cache kept",
            f"optimizer states on the {'host' if self.optimizer_on_host else 'device'}",
        ]
        return ", ".join(choices)


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    optimizer_on_host: bool
    releases_cache: bool
    recompute: bool


def plan_memory(
    estimate: MemoryEstimate, request: MemoryRequest, device_bytes: int, host_bytes: int | None = None
) -> MemoryPlan:
    """Return the cheapest plan that fits, or the requested plan if the request leaves nothing to decide.

    `device_bytes`: device memory that the process may use, CUDA's own included. `host_bytes`: None if unknown.
    """
    options = list(dict.fromkeys(_options(request)))
    plans = (
        _build_plan(estimate, request, device_bytes, option, tokens, max_pages)
        for min_tokens, max_pages in _limits(estimate, request, device_bytes)
        for option in options
        for tokens in _token_counts(request, min_tokens)
    )
    rejected = []
    for plan in plans:
        if plan.fits and (host_bytes is None or plan.host <= host_bytes):
            return plan
        rejected.append(plan)
    if len(options) == 1 and request.micro_tokens is not None:
        return rejected[0]
    raise _out_of_memory_error(estimate, rejected[-1], host_bytes)


def _options(request: MemoryRequest) -> Iterator[MemoryOptions]:
    """Yield combinations from the cheapest on; what the request fixes stays fixed."""
    requested = request.optimizer_on_host, request.releases_cache, request.recompute
    for combination in product((False, True), repeat=3):
        pairs = zip(combination, requested, strict=True)
        yield MemoryOptions(*(chosen if fixed is None else fixed for chosen, fixed in pairs))


def _limits(estimate: MemoryEstimate, request: MemoryRequest, device_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (minimum of tokens per pass, maximum of pages). Few tokens and a small cache are the last resort."""
    models = CUDA_CONTEXT + (request.engines + request.weights_copy) * estimate.parameters
    share = int(request.cache_share * max(0, device_bytes - models)) // request.engines
    min_pages = request.pages_per_slot + 1
    pages = max(min_pages, min(request.max_pages, share // estimate.kv_cache(request.page_size)))
    yield max(request.max_context, EFFICIENT_TOKENS), pages
    yield request.max_context, pages
    while pages > min_pages:
        pages = max(min_pages, pages // 4)
        yield request.max_context, pages


def _token_counts(request: MemoryRequest, min_tokens: int) -> list[int]:
    if request.micro_tokens is not None:
        return [request.micro_tokens]
    return [*range(MAX_TOKENS, min_tokens, -TOKENS_STEP), min_tokens]


def _build_plan(
    estimate: MemoryEstimate,
    request: MemoryRequest,
    device_bytes: int,
    options: MemoryOptions,
    tokens: int,
    max_pages: int,
) -> MemoryPlan:
    """Up to half of `max_pages` are given up if only the rollout does not fit."""
    items = [
        *_persistent_items(estimate, request, options.optimizer_on_host),
        *_working_items(estimate, request, options, tokens),
    ]
    page = request.engines * estimate.kv_cache(request.page_size)
    free = int(device_bytes * (1 - RESERVED_SHARE)) - sum(item.rollout for item in items)
    pages = max(request.pages_per_slot + 1, max_pages - max_pages // 2, min(max_pages, free // page))
    size = pages * page if request.engine_share is None else int(request.engine_share * device_bytes)
    name = "KV cache" if request.engine_share is None else "engine"
    items.append(MemoryItem(name, rollout=size, update=0 if options.releases_cache else size))
    return MemoryPlan(
        micro_tokens=tokens,
        pages=pages if request.engine_share is None else None,
        optimizer_on_host=options.optimizer_on_host,
        recompute=options.recompute,
        releases_cache=options.releases_cache,
        items=tuple(item for item in items if item.rollout or item.update or item.host),
        device_bytes=device_bytes,
    )


def _persistent_items(estimate: MemoryEstimate, request: MemoryRequest, on_host: bool) -> Iterator[MemoryItem]:
    """Yield what lives as long as the run."""

    def on_device(name: str, size: int) -> MemoryItem:
        return MemoryItem(name, rollout=size, update=size)

    def state(name: str, size: int) -> MemoryItem:
        return MemoryItem(name, host=size) if on_host else on_device(name, size)

    shape = estimate.shape
    critic = shape.trunk_trained if request.critic else 0
    trained = shape.trained + critic
    yield on_device("CUDA context", CUDA_CONTEXT)
    yield on_device("parameters", estimate.parameters)
    reference = shape.trained * FLOAT32_BYTES if shape.adapter else estimate.parameters
    yield on_device("reference model", reference if request.reference else 0)
    yield on_device("engine's weights", estimate.parameters if request.weights_copy else 0)
    yield on_device("critic", estimate.trunk if request.critic else 0)
    yield on_device("frozen opponent", (request.engines - 1) * estimate.parameters)
    yield state("float32 master weights", estimate.master_weights(trained, on_host))
    yield state("optimizer moments", estimate.moments(shape.trained, request.muon) + estimate.moments(critic, False))
    yield MemoryItem("float32 gradients", update=trained * FLOAT32_BYTES)
    yield MemoryItem("transfer buffers", host=estimate.staging() if on_host else 0)


def _working_items(
    estimate: MemoryEstimate, request: MemoryRequest, options: MemoryOptions, tokens: int
) -> Iterator[MemoryItem]:
    """Yield the temporary memory of rollouts and updates."""
    native = request.engine_share is None
    graphs = request.engines * estimate.graphs(request.prefill_tokens, request.slots) if native else 0
    working = estimate.working(tokens, options.recompute)
    yield MemoryItem("activations", update=estimate.activations(tokens, options.recompute))
    yield MemoryItem("logits and one layer", rollout=estimate.scoring(tokens), update=working)
    yield MemoryItem("CUDA graphs", rollout=graphs, update=0 if options.releases_cache else graphs)


def _out_of_memory_error(estimate: MemoryEstimate, smallest: MemoryPlan, host_bytes: int | None) -> UserError:
    needed = max(smallest.rollout, smallest.update) / (1 - RESERVED_SHARE)
    fix = "use a smaller model" if estimate.shape.adapter else "train an adapter (lora.rank 16) or a smaller model"
    location, available = "GPU", smallest.device_bytes
    if needed <= smallest.device_bytes and host_bytes is not None:
        needed, location, available = smallest.host, "host", host_bytes
    return UserError(
        f"Training this model needs {needed / GIB:.1f} GiB of {location} memory even with {smallest.describe()}, "
        f"but only {available / GIB:.1f} GiB are available: {fix}"
    )
