"""Where everything goes that training needs, decided before anything is allocated.

What costs least is tried first: all of it on the device; then fewer tokens a pass; then activations made again; then
the engine's cache given back during updates; then the optimiser's states on the host.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from turnwise.core.errors import UserError
from turnwise.models.memory.estimate import CUDA_CONTEXT, FLOAT32_BYTES, GIB, MemoryEstimate

MAX_TOKENS, EFFICIENT_TOKENS, TOKENS_STEP = 65_536, 8_192, 1_024
"""Of a pass: more gain nothing, fewer than enough leave the device idle; and in what steps they are tried."""
RESERVED_SHARE = 0.08
"""Share of the memory that stays free: for what is torn into pieces, and what is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """What a run asks for. What is None is the plan's to decide."""

    slots: int
    longest: int
    """Tokens of a context, at most."""
    page: int
    """Positions of a page of the cache."""
    prefill_tokens: int
    cache_share: float
    engines: int = 1
    """2: a frozen opponent has a model and an engine of its own."""
    critic: bool = False
    """Whether it is a model of its own."""
    reference: bool = False
    muon: bool = False
    micro_tokens: int | None = None
    on_host: bool | None = None
    recompute: bool | None = None
    releases_cache: bool | None = None

    @property
    def all_pages(self) -> int:
        """As many as could ever be used, and one that is nobody's."""
        return self.slots * self.pages_each + 1

    @property
    def pages_each(self) -> int:
        return -(-self.longest // self.page)


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """Bytes of one thing on the device while episodes are rolled out and during an update, and on the host."""

    name: str
    rollout: int = 0
    update: int = 0
    host: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    micro_tokens: int
    """Of a forward and backward pass."""
    pages: int | None
    """Of the engine's cache; None: the engine sees for itself."""
    on_host: bool
    """The optimiser's states."""
    recompute: bool
    """Activations are made again in the backward pass."""
    releases_cache: bool
    """The engine gives its cache and its graphs back before each update."""
    parts: tuple[MemoryItem, ...] = ()
    room: int = 0
    """Of the device."""

    @property
    def rollout(self) -> int:
        return sum(part.rollout for part in self.parts)

    @property
    def update(self) -> int:
        return sum(part.update for part in self.parts)

    @property
    def host(self) -> int:
        return sum(part.host for part in self.parts)

    @property
    def fits(self) -> bool:
        return max(self.rollout, self.update) <= self.room * (1 - RESERVED_SHARE)

    def describe(self) -> str:
        """What was decided, in one line."""
        choices = [
            f"{self.micro_tokens:,} tokens a pass",
            "activations made again" if self.recompute else "activations kept",
            "cache given back during updates" if self.releases_cache else "cache kept",
            f"optimiser states on the {'host' if self.on_host else 'device'}",
        ]
        return ", ".join(choices)


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    on_host: bool
    releases_cache: bool
    recompute: bool


def plan_memory(needs: MemoryEstimate, demand: MemoryRequest, room: int, host_room: int | None = None) -> MemoryPlan:
    """The least costly plan that fits. `room`: bytes of the device that the process may have, CUDA's own included.

    Where everything is given, it is done as given. `host_room`: bytes of the host, where they are known.
    """
    choices = list(dict.fromkeys(_options(demand)))
    plans = (
        _build_plan(needs, demand, room, choice, tokens, most)
        for least, most in _limits(needs, demand, room)
        for choice in choices
        for tokens in _token_counts(demand, least)
    )
    tried = []
    for plan in plans:
        if plan.fits and (host_room is None or plan.host <= host_room):
            return plan
        tried.append(plan)
    if len(choices) == 1 and demand.micro_tokens is not None:
        return tried[0]
    raise _out_of_memory_error(needs, tried[-1], host_room)


def _options(demand: MemoryRequest) -> Iterator[MemoryOptions]:
    """From the least costly on; what is given is given."""
    given = demand.on_host, demand.releases_cache, demand.recompute
    for each in product((False, True), repeat=3):
        yield MemoryOptions(*(own if fixed is None else fixed for own, fixed in zip(each, given, strict=True)))


def _limits(needs: MemoryEstimate, demand: MemoryRequest, room: int) -> Iterator[tuple[int, int]]:
    """(tokens of a pass at least, pages at most): few tokens and a small cache are the last resort."""
    models = CUDA_CONTEXT + demand.engines * needs.parameters
    share = int(demand.cache_share * max(0, room - models)) // demand.engines
    least = demand.pages_each + 1
    pages = max(least, min(demand.all_pages, share // needs.cached(demand.page)))
    yield max(demand.longest, EFFICIENT_TOKENS), pages
    yield demand.longest, pages
    while pages > least:
        pages = max(least, pages // 4)
        yield demand.longest, pages


def _token_counts(demand: MemoryRequest, least: int) -> list[int]:
    if demand.micro_tokens is not None:
        return [demand.micro_tokens]
    return [*range(MAX_TOKENS, least, -TOKENS_STEP), least]


def _build_plan(
    needs: MemoryEstimate, demand: MemoryRequest, room: int, choice: MemoryOptions, tokens: int, most: int
) -> MemoryPlan:
    """`most`: pages; up to half of them are given up where only the rollout is too tight."""
    parts = [*_persistent_items(needs, demand, choice.on_host), *_working_items(needs, demand, choice, tokens)]
    page = demand.engines * needs.cached(demand.page)
    left = int(room * (1 - RESERVED_SHARE)) - sum(part.rollout for part in parts)
    pages = max(demand.pages_each + 1, most - most // 2, min(most, left // page))
    parts.append(
        MemoryItem("keys and values", rollout=pages * page, update=0 if choice.releases_cache else pages * page)
    )
    return MemoryPlan(
        micro_tokens=tokens,
        pages=pages,
        on_host=choice.on_host,
        recompute=choice.recompute,
        releases_cache=choice.releases_cache,
        parts=tuple(part for part in parts if part.rollout or part.update or part.host),
        room=room,
    )


def _persistent_items(needs: MemoryEstimate, demand: MemoryRequest, on_host: bool) -> Iterator[MemoryItem]:
    """What lives as long as the run."""

    def always(name: str, size: int) -> MemoryItem:
        return MemoryItem(name, rollout=size, update=size)

    def state(name: str, size: int) -> MemoryItem:
        return MemoryItem(name, host=size) if on_host else always(name, size)

    critic = needs.shape.trunk_trained if demand.critic else 0
    trained = needs.shape.trained + critic
    yield always("CUDA itself", CUDA_CONTEXT)
    yield always("parameters", needs.parameters)
    reference = needs.shape.trained * FLOAT32_BYTES if needs.shape.adapter else needs.parameters
    yield always("reference model", reference if demand.reference else 0)
    yield always("critic", needs.trunk if demand.critic else 0)
    yield always("frozen opponent", (demand.engines - 1) * needs.parameters)
    yield state("float32 masters", needs.masters(trained, on_host))
    yield state("optimiser's moments", needs.moments(needs.shape.trained, demand.muon) + needs.moments(critic, False))
    yield MemoryItem("gradients, float32", update=trained * FLOAT32_BYTES)
    yield MemoryItem("gradients and parameters on their way", host=needs.staging() if on_host else 0)


def _working_items(
    needs: MemoryEstimate, demand: MemoryRequest, choice: MemoryOptions, tokens: int
) -> Iterator[MemoryItem]:
    """What a phase works in."""
    graphs = demand.engines * needs.graphs(demand.prefill_tokens, demand.slots)
    yield MemoryItem("activations", update=needs.activations(tokens, choice.recompute))
    yield MemoryItem(
        "logits and one layer", rollout=needs.scoring(tokens), update=needs.working(tokens, choice.recompute)
    )
    yield MemoryItem("the engine's graphs", rollout=graphs, update=0 if choice.releases_cache else graphs)


def _out_of_memory_error(needs: MemoryEstimate, last: MemoryPlan, host_room: int | None) -> UserError:
    """`last`: what needs least."""
    wanted = max(last.rollout, last.update) / (1 - RESERVED_SHARE)
    mend = "give a smaller model" if needs.shape.adapter else "train an adapter (--lora.rank 16), or a smaller model"
    where, has = "GPU", last.room
    if wanted <= last.room and host_room is not None:
        wanted, where, has = last.host, "host", host_room
    return UserError(
        f"training this model needs {wanted / GIB:.1f} GiB of the {where}'s memory even with {last.describe()}, "
        f"and there are {has / GIB:.1f}: {mend}"
    )
