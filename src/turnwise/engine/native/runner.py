"""What one pass does: new contexts in, then a token for every running session. No asyncio here."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.core.protocols import Sampling
from turnwise.core.trajectory import Stop
from turnwise.engine.native.cache import DecodePlan, KVCache, PrefillPlan
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
        """Takes in new requests, samples a token for all; returns those that are done."""
        self.counts["passes"] += 1
        done: list[Request] = []
        if arrived:
            done += self._settle(self._prefill(sorted(arrived, key=lambda request: request.slot.index)))
        if self.running:
            requests, self.running = self.running, []
            done += self._settle(self._decode(requests))
        return done

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

    def _settle(self, requests: list[Request]) -> list[Request]:
        """Keeps those that go on, in the order of their slots; returns those that are done."""
        self.running += [request for request in requests if request.stop is None]
        self.running.sort(key=lambda request: request.slot.index)
        return [request for request in requests if request.stop is not None]

    def _prefill(self, requests: list[Request]) -> list[Request]:
        """Runs the new tokens of all waiting sessions; equal first prompts, as in a group, are run once."""
        groups: dict[tuple[int, ...], list[Request]] = {}
        for request in requests:
            slot = request.slot
            same = tuple(slot.pending) if slot.length == 0 else (-1, slot.index)
            groups.setdefault(same, []).append(request)
        self._share_prefix([[one.slot for one in group] for group in groups.values() if group[0].slot.length == 0])
        for chunk in self._chunks(list(groups.values())):
            logits = self._extend([leader.slot for leader, *_ in chunk])
            for leader, *followers in chunk:
                self._copy(leader.slot, [follower.slot for follower in followers])
            repeats = torch.tensor([len(group) for group in chunk])
            self._sample([request for group in chunk for request in group], logits.repeat_interleave(repeats, dim=0))
        return requests

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
        self._extend([first])
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

    def _chunks(self, groups: list[list[Request]]) -> Iterator[list[list[Request]]]:
        chunk: list[list[Request]] = []
        tokens = 0
        for group in groups:
            size = len(group[0].slot.pending)
            if chunk and tokens + size > self._prefill_tokens:
                yield chunk
                chunk, tokens = [], 0
            chunk.append(group)
            tokens += size
        yield chunk

    def _extend(self, slots: list[Slot]) -> Tensor:
        """Appends the slots' pending tokens to their caches; the logits after the last of each. [B, V]"""
        past, new = [slot.length for slot in slots], [len(slot.pending) for slot in slots]
        self._cache.reserve(max(p + n for p, n in zip(past, new, strict=True)))
        plan = PrefillPlan(self._cache, [slot.index for slot in slots], past, new)
        ids = torch.tensor([token for slot in slots for token in slot.pending])
        self.counts["prefill_tokens"] += len(ids)
        for slot in slots:
            slot.length += len(slot.pending)
            slot.pending.clear()
        with last_layer_only_at(self.model, plan.last):
            return self._forward(ids, plan.positions, plan, logits_to_keep=plan.last)

    def _decode(self, requests: list[Request]) -> list[Request]:
        """One token for every running session."""
        slots = torch.tensor([request.slot.index for request in requests])
        positions = torch.tensor([request.slot.length for request in requests])
        ids = torch.tensor([request.slot.pending[0] for request in requests])
        self._cache.reserve(int(positions.max()) + 1)
        prefixes = {request.slot.prefix for request in requests}
        prefix = prefixes.pop() if len(prefixes) == 1 < len(requests) else None
        plan = DecodePlan(self._cache, slots, positions, shared=0 if prefix is None else prefix.length)
        logits = self._forward(ids, positions, plan)
        self.counts["decode_tokens"] += len(ids)
        for request in requests:
            request.slot.length += 1
            request.slot.pending.clear()
        self._sample(requests, logits)
        return requests

    def _forward(self, ids: Tensor, positions: Tensor, plan: Any, **options: Tensor) -> Tensor:
        output = self.model(input_ids=ids[None], position_ids=positions[None], plan=plan, use_cache=False, **options)
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
