"""Passes of the native engine: one forward over new contexts and running sessions, which yields tokens for each."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, takewhile
from typing import Any, cast

import torch
from torch import Tensor, nn

from turnwise.engine.cpu.attention import MAX_NARROW_ROW, KVCache, QueryRow, SlotPlan
from turnwise.engine.cpu.sampling import (
    MAX_DRAFT_TOKENS,
    NO_BIGRAM,
    Bigram,
    NgramDrafter,
    SamplingBatch,
    min_draft_probability,
    sample_batch,
)
from turnwise.engine.native.requests import Request
from turnwise.engine.turn import stop_reason
from turnwise.models.allowed_tokens import mask_logits_, stack_sets
from turnwise.models.attention.interface import check_attention
from turnwise.models.forward import capture_input, last_layer_index, restrict_last_layer
from turnwise.models.layers import decoder_layers
from turnwise.models.memory.split import split_by_size
from turnwise.models.vision.encoder import embed_images, image_encoder
from turnwise.models.vision.whole_images import end_before_image, tokens_ahead

MIN_SHARED_PREFIX = 16
"""Prompts that share at least this many first tokens run the shared prefix once."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrefix:
    """First positions of several slots that hold copies of the same keys and values."""

    length: int


@dataclass(slots=True, eq=False)
class CacheSlot:
    """Cache state of one session: cached positions, pending tokens, number of sampled tokens."""

    index: int
    address: int
    length: int = 0
    pending: list[int] = field(default_factory=list)
    sampled: int = 0
    prefix: SharedPrefix | None = None
    """Prefix shared with other slots that have the same object."""
    bigram: Bigram = NO_BIGRAM
    shift: int = 0
    """Rotary position of the next token minus `length`; not 0 after images in models that place them in a grid."""

    def append(self, ids: Sequence[int]) -> None:
        """Add context tokens for the next pass."""
        self.pending.extend(ids)
        before, last = (*self.bigram, *ids[-2:])[-2:]
        self.bigram = (before, last)

    def restart(self) -> None:
        self.length, self.bigram, self.shift = 0, NO_BIGRAM, 0
        self.pending.clear()


@dataclass(slots=True, eq=False)
class ScheduledSlot:
    """Tokens that one slot runs in a pass: its pending tokens, then a draft of what will be sampled."""

    slot: CacheSlot
    draft: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    """Requests of this slot, and of slots with the same context, which get copies."""

    @property
    def new(self) -> int:
        return len(self.slot.pending) + len(self.draft)

    @property
    def read(self) -> int:
        """Number of its last tokens whose logits are used."""
        return 1 + len(self.draft)


class SlotRunner:
    def __init__(
        self,
        model: nn.Module,
        *,
        slots: int,
        stop_ids: Iterable[int],
        decode: Callable[[list[int]], str],
        prefill_tokens: int = 16384,
    ) -> None:
        check_attention(model)
        self.model = model
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self.counts = dict.fromkeys(
            ("passes", "context_tokens", "shared_tokens", "sampled_tokens", "drafted_tokens", "accepted_tokens"), 0
        )
        self.running: list[Request] = []
        self.value_head: Callable[[Tensor], Tensor] | None = None
        """Hidden states [M, H] -> values [M] of the positions before sampled tokens; None: no values."""
        self._output_layer: nn.Module = cast(Any, model).get_output_embeddings()
        self._last_layer = last_layer_index(model)
        encoder = image_encoder(model)
        self._grid = None if encoder is None or encoder.merge_size is None else encoder
        self._cache = KVCache(slots, len(decoder_layers(model) or [model]))
        self._claimed: dict[int, CacheSlot] = {}  # by index
        self._free: list[int] = []
        self._stop_ids = frozenset(stop_ids)
        self._drafter = NgramDrafter(self._stop_ids)
        self._decode_text = decode
        self._prefill_tokens = prefill_tokens

    @torch.inference_mode()
    def run_pass(self, arrived: list[Request]) -> list[Request]:
        """Sample one or more tokens for every session; return the finished requests.

        Arrived requests run their new context in the same forward as all others.
        """
        self.counts["passes"] += 1
        self._compact()
        running = [request for request in self.running if request.stop is None]
        *earlier, last = self._chunks(self._group_by_context(arrived)) or [[]]
        for chunk in earlier:
            self._forward(chunk)
        self._forward([*last, *([request] for request in running)])
        for request in arrived:
            request.taken = True
        taken = [*arrived, *running]
        self.running = [request for request in taken if request.stop is None]
        return [request for request in taken if request.stop is not None]

    capture_s = 0.0
    """No graphs are captured."""

    def sleep(self) -> None:
        """Do nothing: a cache in host memory can stay."""

    def finish_pass(self) -> list[Request]:
        """Return nothing: a pass is read when it is run, and prefixes are shared only within a pass."""
        return []

    def claim(self, address: int) -> CacheSlot:
        """Return a slot for a session. The caller ensures that one is free."""
        slot = CacheSlot(index=self._free.pop() if self._free else len(self._claimed), address=address)
        self._claimed[slot.index] = slot
        return slot

    @torch.inference_mode()
    def fork(self, slot: CacheSlot, address: int, ids: Sequence[int]) -> CacheSlot:
        """Return a slot for a session with the context `ids`, the first tokens of the context of `slot`.

        Its cached positions are copied, except that of the last token, whose logits are needed.
        """
        fork = self.claim(address)
        fork.append(ids)
        cached = min(slot.length, max(0, len(ids) - 1))
        if cached == 0:
            return fork
        self._cache.copy(slot.index, [fork.index], cached)
        self.counts["shared_tokens"] += cached
        del fork.pending[:cached]
        fork.length = cached
        if slot.prefix is not None and slot.prefix.length <= cached:
            fork.prefix = slot.prefix
        if self._grid is not None and min(ids) < 0:
            _, end = self._grid.place(ids[:cached], 0)
            fork.shift = end - cached
        return fork

    def release(self, slot: CacheSlot) -> None:
        """Free the slot and drop its running request."""
        self.running = [request for request in self.running if request.slot is not slot]
        del self._claimed[slot.index]
        self._free.append(slot.index)
        if not self._claimed:  # rounds are reproducible whatever ran before them
            self._free.clear()
            self._drafter.reset()

    def _compact(self) -> None:
        """Move the last slots into free ones, so that decoding reads no empty slots."""
        for index in sorted(self._free):
            last = max(self._claimed)
            if last < index:
                break
            slot = self._claimed.pop(last)
            self._cache.copy(last, [index], slot.length)
            slot.index = index
            self._claimed[index] = slot
        self._free.clear()

    def _group_by_context(self, arrived: list[Request]) -> list[list[Request]]:
        """Group requests with equal first prompts, which run once, in the order of their slots."""
        groups: dict[tuple[int, ...], list[Request]] = {}
        for request in sorted(arrived, key=lambda request: request.slot.index):
            slot = request.slot
            key = tuple(slot.pending) if slot.length == 0 else (-1, slot.index)
            groups.setdefault(key, []).append(request)
        grouped = list(groups.values())
        if first_turns := [[request.slot for request in group] for group in grouped if group[0].slot.length == 0]:
            self._share_prefix(first_turns)
        return grouped

    def _share_prefix(self, groups: list[list[CacheSlot]]) -> None:
        """Run the common prefix of the first prompts once and copy it to their slots. Slots of a group are equal."""
        leaders = [leader for leader, *_ in groups]
        columns = zip(*(slot.pending[:-1] for slot in leaders), strict=False)
        shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
        shared = end_before_image(leaders[0].pending, shared)
        prefix = SharedPrefix(shared) if shared >= MIN_SHARED_PREFIX else None
        for slot in chain.from_iterable(groups):
            slot.prefix = prefix
        if prefix is None or len(leaders) < 2:
            return
        first, *others = leaders
        rest = first.pending[shared:]
        del first.pending[shared:]
        self._logits([ScheduledSlot(first)])
        self._copy(first, others, first.length)
        first.pending = rest

    def _copy(self, source: CacheSlot, targets: list[CacheSlot], positions: int) -> None:
        """Copy the first `positions` of the source's cache to the targets, and drop their pending tokens that it holds.

        Positions beyond the source's length hold draft tokens: they are copied, but count only once they are accepted.
        """
        if not targets:
            return
        self._cache.copy(source.index, [slot.index for slot in targets], positions)
        self.counts["shared_tokens"] += source.length * len(targets)
        for slot in targets:
            del slot.pending[: source.length - slot.length]
            slot.length, slot.shift = source.length, source.shift

    def _chunks(self, groups: list[list[Request]]) -> list[list[list[Request]]]:
        """Split the groups so that no forward runs more than `prefill_tokens` new tokens."""
        return split_by_size(groups, lambda group: len(group[0].slot.pending), self._prefill_tokens)

    def _forward(self, groups: list[list[Request]]) -> None:
        """Run one forward over the groups and sample for each request."""
        if not groups:
            return
        min_probability = min_draft_probability(sum(map(len, groups)), self._parameters)
        scheduled = [ScheduledSlot(group[0].slot, self._draft(group, min_probability), group) for group in groups]
        scheduled.sort(key=lambda entry: (entry.new <= MAX_NARROW_ROW, entry.slot.index))
        with capture_input(self._output_layer) as hidden:
            logits = self._logits(scheduled)
        values = [] if self.value_head is None else self.value_head(hidden[0][0]).tolist()
        for entry in scheduled:
            others = [request.slot for request in entry.requests[1:]]
            self._copy(entry.slot, others, entry.slot.length + len(entry.draft))
        self._sample(scheduled, logits, values)

    def _draft(self, group: list[Request], min_probability: float) -> list[int]:
        if any(request.matcher is not None for request in group):  # the next set of tokens depends on this one
            return []
        left = min(request.sampling.max_tokens - len(request.ids) for request in group)
        max_tokens = min(MAX_DRAFT_TOKENS, left - 1)
        return self._drafter.draft(group[0].slot.bigram, max_tokens=max_tokens, min_probability=min_probability)

    def _logits(self, scheduled: list[ScheduledSlot]) -> Tensor:
        """Append pending and draft tokens to the cache; return the logits of the tokens that are read."""
        tokens = [token for entry in scheduled for token in (*entry.slot.pending, *entry.draft)]
        ends = accumulate(entry.new for entry in scheduled)
        read = [index for end, entry in zip(ends, scheduled, strict=True) for index in range(end - entry.read, end)]
        ids = torch.tensor(tokens)
        plan = self._plan(scheduled, ids)
        positions = plan.positions[None] if self._grid is None else self._place(scheduled, plan.positions)
        for entry in scheduled:
            if len(entry.slot.pending) > 1:
                self.counts["context_tokens"] += len(entry.slot.pending)
            entry.slot.length += len(entry.slot.pending)
            entry.slot.pending.clear()
        if len(read) == len(tokens):
            return self._run(ids, plan, positions)
        keep = torch.tensor(read)
        with restrict_last_layer(self.model, keep):
            return self._run(ids, plan, positions, logits_to_keep=keep)

    def _plan(self, scheduled: list[ScheduledSlot], ids: Tensor) -> SlotPlan:
        self._cache.reserve(max(entry.slot.length + entry.new for entry in scheduled))
        prefixes = {entry.slot.prefix for entry in scheduled}
        prefix = prefixes.pop() if len(prefixes) == 1 < len(scheduled) else None
        rows = [QueryRow(entry.slot.index, entry.slot.length, entry.new, entry.read) for entry in scheduled]
        ahead = tokens_ahead(self.model, ids, [entry.new for entry in scheduled])
        shared = 0 if prefix is None else prefix.length
        return SlotPlan(self._cache, rows, shared=shared, last=self._last_layer, ahead=ahead)

    def _place(self, scheduled: list[ScheduledSlot], positions: Tensor) -> Tensor:
        """Return the rotary positions of the tokens in a model that places images in a grid. [3, 1, N]"""
        placed = list[Tensor]()
        for entry, row in zip(scheduled, positions.split([entry.new for entry in scheduled]), strict=True):
            slot = entry.slot
            if self._grid is None or min(slot.pending, default=0) >= 0:
                placed.append((row + slot.shift).expand(3, -1))
                continue
            slot_positions, end = self._grid.place([*slot.pending, *entry.draft], slot.length + slot.shift)
            slot.shift = end - slot.length - entry.new
            placed.append(slot_positions)
        return torch.cat(placed, dim=1)[:, None]

    def _run(self, ids: Tensor, plan: SlotPlan, positions: Tensor, **options: Tensor) -> Tensor:
        with embed_images(self.model, ids) as embedded:
            inputs = {"input_ids": embedded[None], "position_ids": positions, "plan": plan, "use_cache": False}
            return self.model(**inputs, **options).logits[0]

    def _sample(self, scheduled: list[ScheduledSlot], logits: Tensor, values: list[float]) -> None:
        """Sample at every position that was read; each request takes its tokens up to the first wrong draft."""
        batch, row = SamplingBatch(), 0
        for entry in scheduled:
            for request in entry.requests:
                slot = request.slot
                batch.add(
                    row=row,
                    address=slot.address,
                    counter=slot.sampled,
                    setting=request.sampling,
                    count=entry.read,
                )
            row += entry.read
        if any(request.matcher is not None for entry in scheduled for request in entry.requests):
            logits = self._constrain(scheduled, logits, batch)
        sampled = sample_batch(logits, batch)
        index = row = 0
        for entry in scheduled:
            for request in entry.requests:
                taken = self._take(request, entry.draft, sampled[index : index + entry.read])
                request.values += values[row : row + taken]
                index += entry.read
            row += entry.read

    def _take(self, request: Request, draft: list[int], sampled: list[tuple[int, float]]) -> int:
        """Add the sampled tokens up to the first that differs from the draft; return their number.

        The last one enters the cache with the next pass; those before it were drafted and are there.
        """
        slot = request.slot
        for number, (token, logprob) in enumerate(sampled):
            request.ids.append(token)
            request.logprobs.append(logprob)
            request.stop = stop_reason(request, self._stop_ids, self._decode_text)
            self._drafter.observe(slot.bigram, token)
            slot.bigram = (slot.bigram[1], token)
            if request.matcher is not None:
                request.matcher.accept(token)
            if request.stop is not None or number == len(draft) or token != draft[number]:
                break
        slot.sampled += number + 1
        slot.length += number
        slot.pending.append(token)
        self.counts["sampled_tokens"] += number + 1
        self.counts["drafted_tokens"] += len(draft)
        self.counts["accepted_tokens"] += number
        return number + 1

    def _constrain(self, scheduled: list[ScheduledSlot], logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Append a masked copy of the logits of each constrained request: others may sample from the same row."""
        rows, sets, index = list[int](), list[bytes](), 0
        for entry in scheduled:
            for request in entry.requests:
                if request.matcher is not None:
                    rows.append(batch.rows[index])
                    batch.rows[index] = len(logits) + len(sets)
                    sets.append(request.matcher.allowed())
                index += entry.read
        return torch.cat([logits, mask_logits_(logits[rows], stack_sets(sets))])
