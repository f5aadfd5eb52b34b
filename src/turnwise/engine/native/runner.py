"""What one pass does: one forward over new contexts and running sessions, a token for each. No asyncio here."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain, takewhile

import torch
from torch import Tensor, nn

from turnwise.core.protocols import Sampling
from turnwise.core.trajectory import Stop
from turnwise.engine.native.cache import DecodePlan, KVCache, MixedPlan, PrefillPlan
from turnwise.engine.native.sampling import Rows, sample, uniforms
from turnwise.models.last_layer import last_layer_only_at

SHARED_PREFIX = 16
"""Prompts that begin alike for at least this many tokens are run once up to where they part."""


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The first positions of several slots, filled with copies of the same keys and values."""

    length: int


@dataclass(slots=True, eq=False)
class Slot:
    """One session's place: what its cache holds, what waits to be appended, how much it has sampled."""

    index: int
    address: int
    length: int = 0
    pending: list[int] = field(default_factory=list)
    sampled: int = 0
    prefix: Prefix | None = None
    """What it shares with others that hold the same one."""


@dataclass(slots=True, eq=False)
class Request:
    """One turn being sampled. `stop` is None while it runs."""

    slot: Slot
    sampling: Sampling
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: Stop | None = None


class Runner:
    def __init__(
        self,
        model: nn.Module,
        *,
        slots: int,
        stop_ids: Iterable[int],
        decode: Callable[[list[int]], str],
        prefill_tokens: int = 16384,
    ) -> None:
        self.model = model
        self.counts: dict[str, int] = {"prefill_tokens": 0, "shared_tokens": 0, "decode_tokens": 0, "passes": 0}
        self.running: list[Request] = []
        self._cache = KVCache(slots)
        self._held: list[Slot] = []  # by index
        self._stop_ids = frozenset(stop_ids)
        self._decode_text = decode
        self._prefill_tokens = prefill_tokens

    @torch.inference_mode()
    def run_pass(self, arrived: list[Request]) -> list[Request]:
        """A token for every session: those that arrived run their new context, in one forward with all others.

        Returns those that are done.
        """
        self.counts["passes"] += 1
        *earlier, last = self._chunks(self._alike(arrived)) or [[]]
        for chunk in earlier:
            self._forward(chunk, [])
        running = [request for request in self.running if request.stop is None]
        self._forward(last, running)
        taken = [*arrived, *running]
        self.running = [request for request in taken if request.stop is None]
        self.running.sort(key=lambda request: request.slot.index)
        return [request for request in taken if request.stop is not None]

    def claim(self, address: int) -> Slot:
        """A place for a session; the caller sees to it that one is left."""
        slot = Slot(index=len(self._held), address=address)
        self._held.append(slot)
        return slot

    @torch.inference_mode()
    def release(self, slot: Slot) -> None:
        """Ends what the slot still ran. The last one moves into its place, so that decoding reads no empty slots."""
        self.running = [request for request in self.running if request.slot is not slot]
        last = self._held.pop()
        if last is not slot:
            self._cache.copy(last.index, [slot.index], last.length)
            last.index = slot.index
            self._held[last.index] = last
            self.running.sort(key=lambda request: request.slot.index)

    def _alike(self, arrived: list[Request]) -> list[list[Request]]:
        """The requests by context, in the order of their slots: equal first prompts, as in a group, are run once."""
        groups: dict[tuple[int, ...], list[Request]] = {}
        for request in sorted(arrived, key=lambda request: request.slot.index):
            slot = request.slot
            same = tuple(slot.pending) if slot.length == 0 else (-1, slot.index)
            groups.setdefault(same, []).append(request)
        found = list(groups.values())
        if fresh := [[one.slot for one in group] for group in found if group[0].slot.length == 0]:
            self._share_prefix(fresh)
        return found

    def _share_prefix(self, groups: list[list[Slot]]) -> None:
        """Runs what the first prompts have in common once, and copies it to their slots. Slots of a group are equal."""
        leaders = [leader for leader, *_ in groups]
        columns = zip(*(slot.pending[:-1] for slot in leaders), strict=False)
        shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
        prefix = Prefix(shared) if shared >= SHARED_PREFIX else None
        for slot in chain.from_iterable(groups):
            slot.prefix = prefix
        if prefix is None or len(leaders) < 2:
            return
        first, *others = leaders
        rest = first.pending[shared:]
        del first.pending[shared:]
        self._logits([first], [])
        self._copy(first, others)
        first.pending = rest

    def _copy(self, source: Slot, targets: list[Slot]) -> None:
        """Gives the targets what the source's cache holds, in place of as many of their pending tokens."""
        if not targets:
            return
        self._cache.copy(source.index, [slot.index for slot in targets], source.length)
        self.counts["shared_tokens"] += source.length * len(targets)
        for slot in targets:
            del slot.pending[: source.length - slot.length]
            slot.length = source.length

    def _chunks(self, groups: list[list[Request]]) -> list[list[list[Request]]]:
        """Cut so that no forward runs more than so many new tokens."""
        chunks: list[list[list[Request]]] = []
        tokens = 0
        for group in groups:
            size = len(group[0].slot.pending)
            if not chunks or tokens + size > self._prefill_tokens:
                chunks.append([])
                tokens = 0
            chunks[-1].append(group)
            tokens += size
        return chunks

    def _forward(self, arrived: list[list[Request]], running: list[Request]) -> None:
        """One forward for new contexts and running sessions alike, and a token for each of them."""
        if not arrived and not running:
            return
        logits = self._logits([leader.slot for leader, *_ in arrived], [request.slot for request in running])
        for leader, *followers in arrived:
            self._copy(leader.slot, [follower.slot for follower in followers])
        if any(len(group) > 1 for group in arrived):
            repeats = torch.tensor([*(len(group) for group in arrived), *(1 for _ in running)])
            logits = logits.repeat_interleave(repeats, dim=0)
        self._sample([*chain.from_iterable(arrived), *running], logits)

    def _logits(self, extended: list[Slot], decoded: list[Slot]) -> Tensor:
        """Appends pending tokens to the caches, many for some and one for others; logits after the last of each."""
        slots = [*extended, *decoded]
        self._cache.reserve(max(slot.length + len(slot.pending) for slot in slots))
        plan = MixedPlan(self._prefill_plan(extended), self._decode_plan(decoded))
        ids = torch.tensor([token for slot in slots for token in slot.pending])
        self.counts["prefill_tokens"] += len(ids) - len(decoded)
        self.counts["decode_tokens"] += len(decoded)
        for slot in slots:
            slot.length += len(slot.pending)
            slot.pending.clear()
        if not extended:
            return self._run(ids, plan)
        with last_layer_only_at(self.model, plan.last):
            return self._run(ids, plan, logits_to_keep=plan.last)

    def _prefill_plan(self, slots: list[Slot]) -> PrefillPlan | None:
        if not slots:
            return None
        past, new = [slot.length for slot in slots], [len(slot.pending) for slot in slots]
        return PrefillPlan(self._cache, [slot.index for slot in slots], past, new)

    def _decode_plan(self, slots: list[Slot]) -> DecodePlan | None:
        if not slots:
            return None
        prefixes = {slot.prefix for slot in slots}
        prefix = prefixes.pop() if len(prefixes) == 1 < len(slots) else None
        return DecodePlan(
            self._cache,
            torch.tensor([slot.index for slot in slots]),
            torch.tensor([slot.length for slot in slots]),
            shared=0 if prefix is None else prefix.length,
        )

    def _run(self, ids: Tensor, plan: MixedPlan, **options: Tensor) -> Tensor:
        positions = plan.positions[None]
        output = self.model(input_ids=ids[None], position_ids=positions, plan=plan, use_cache=False, **options)
        return output.logits[0]

    def _sample(self, requests: list[Request], logits: Tensor) -> None:
        """Draws a token for each request; it enters the cache with the next pass."""
        addresses = torch.tensor([request.slot.address for request in requests])
        counters = torch.tensor([request.slot.sampled for request in requests])
        rows = Rows.of([request.sampling for request in requests])
        tokens, logprobs = sample(logits, rows, uniforms(addresses, counters))
        for request, token, logprob in zip(requests, tokens.tolist(), logprobs.tolist(), strict=True):
            request.ids.append(token)
            request.logprobs.append(logprob)
            request.slot.sampled += 1
            request.slot.pending.append(token)
            request.stop = self._why_stop(request)

    def _why_stop(self, request: Request) -> Stop | None:
        if request.ids[-1] in self._stop_ids:
            return Stop.EOS
        if request.sampling.stop:
            # A character is at most 4 tokens (bytes), so the tail of that many tokens holds any stop string.
            tail = 4 * max(len(text) for text in request.sampling.stop)
            text = self._decode_text(request.ids[-tail:])
            if any(stop in text for stop in request.sampling.stop):
                return Stop.STRING
        return Stop.LENGTH if len(request.ids) >= request.sampling.max_tokens else None
