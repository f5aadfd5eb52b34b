"""Passes of the paged engine: contexts enter the cache, every row samples some tokens, the host reads them.

The host reads the tokens of one pass while the device runs the next. A session whose turn has ended then samples no
more, and tokens sampled after the end of a turn are discarded: their random numbers are used again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from turnwise.core.errors import UserError
from turnwise.engine.native.requests import Request
from turnwise.engine.paged.cache import cache_shape, max_pages, page_bytes, pages_that_fit
from turnwise.engine.paged.device import MAX_STEPS, Device, PrefillChunk, SessionUpdate, TokenTransfer
from turnwise.engine.paged.page_table import PagedSlot, PageTable
from turnwise.engine.turn import SampledTurn, stop_reason
from turnwise.models.attention.interface import check_attention
from turnwise.models.head import output_head
from turnwise.models.memory.plan import PAGE, PREFILL_TOKENS
from turnwise.models.memory.split import split_by_size
from turnwise.models.vision.whole_images import end_before_image

COUNTS = ("passes", "context_tokens", "shared_tokens", "sampled_tokens", "evicted_tokens", "idle_rows")


@dataclass(frozen=True, slots=True)
class PendingPass:
    """A pass whose tokens the host has not read yet."""

    transfer: TokenTransfer
    requests: list[Request]


class PagedRunner:
    """Runs passes on a device. `steps`: tokens per session and pass."""

    def __init__(
        self, device: Device, *, pages: int, stop_ids: Iterable[int], decode: Callable[[list[int]], str], steps: int = 4
    ) -> None:
        if not 1 <= steps <= MAX_STEPS:
            raise ValueError(f"steps per pass must be 1 to {MAX_STEPS}")
        self.counts = dict.fromkeys(COUNTS, 0)
        self._device, self._steps = device, steps
        self._page_table = PageTable(pages)
        self._stop_ids, self._decode_text = frozenset(stop_ids), decode
        self._claimed: dict[int, PagedSlot] = {}
        self._free = self._all_slots()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._issued: dict[Request, int] = {}
        """Tokens sampled for each running request, the pending pass included."""
        self._pending: PendingPass | None = None

    def claim(self, address: int) -> PagedSlot:
        """Return a slot for a session. The caller ensures that one is free."""
        slot = PagedSlot(index=self._free.pop(), address=address)
        self._claimed[slot.index] = slot
        return slot

    def fork(self, slot: PagedSlot, address: int, ids: Sequence[int]) -> PagedSlot:
        """Return a slot for a session with the context `ids`, the first tokens of the context of `slot`.

        It shares the full pages, which nobody writes again. The tokens after them run again with its first turn.
        """
        fork = self.claim(address)
        fork.append(ids)
        self._page_table.share_pages(slot, fork)
        self.counts["shared_tokens"] += fork.cached
        return fork

    def release(self, slot: PagedSlot) -> None:
        """Free the slot and drop its running request."""
        if slot.busy:
            self._running = [request for request in self._running if request.slot is not slot]
            self._issued = {request: steps for request, steps in self._issued.items() if request.slot is not slot}
            slot.busy = False
        if self._waiting:
            self._waiting = deque(request for request in self._waiting if request.slot is not slot)
        self._page_table.release(slot)
        del self._claimed[slot.index]
        self._free.append(slot.index)
        if not self._claimed:  # rounds are reproducible whatever ran before them
            self._free = self._all_slots()
            self._page_table.order_free_pages()

    def _all_slots(self) -> list[int]:
        """Return all slots in descending order: slots are taken from the end."""
        return list(range(self._device.sessions.padding_slot - 1, -1, -1))

    @property
    def capture_s(self) -> float:
        return self._device.graphs.seconds

    def sleep(self) -> None:
        """Release the device's memory. No slot may be claimed, so that no page is in use."""
        if self._claimed:
            raise RuntimeError("cannot sleep while a session is open")
        self._pending = None
        self._device.sleep()

    def finish_pass(self) -> list[Request]:
        """Read the pending pass and stop sharing cached prefixes, before the weights change."""
        self._page_table.forget_contents()
        pending, self._pending = self._pending, None
        return [] if pending is None else self._read(pending)

    def run_pass(self, arrived: list[Request]) -> list[Request]:
        """Start a pass and return the requests that the previous one finished."""
        self._device.wake()
        self.counts["passes"] += 1
        finished = self._finish_constrained()
        self._waiting += sorted(arrived, key=lambda request: request.slot.index)
        self._admit()
        pending, self._pending = self._pending, self._start()
        if pending is None and self._pending is not None and not self._continues():
            pending, self._pending = self._pending, None
        return finished if pending is None else finished + self._read(pending)

    def _finish_constrained(self) -> list[Request]:
        """Read the pending pass if a running request has a constraint: its next set of tokens depends on the last one.

        Such passes sample one token and do not overlap with the host's work.
        """
        if self._pending is None or all(request.matcher is None for request in self._running):
            return []
        pending, self._pending = self._pending, None
        return self._read(pending)

    def _continues(self) -> bool:
        """Return whether a pass after the pending one could sample anything."""
        return any(self._left(request) > 0 for request in self._running)

    def _left(self, request: Request) -> int:
        return request.sampling.max_tokens - self._issued[request]

    def _admit(self) -> None:
        """Start waiting requests in order while pages are free, and prefill their contexts.

        The first ones are launched early, so that the device works while the host prepares the rest.
        """
        entering, tokens, enough = list[tuple[SessionUpdate, PrefillChunk]](), 0, self._device.prefill_tokens // 4
        while self._waiting and (chunk := self._allocate(self._waiting[0])) is not None:
            request = self._waiting.popleft()
            request.taken = True
            self._running.append(request)
            self._issued[request] = 0
            entering.append((self._session_update(request), chunk))
            tokens += len(chunk.ids)
            if tokens >= enough:
                self._launch(entering)
                entering, tokens, enough = [], 0, self._device.prefill_tokens
        if self._waiting and not self._running:
            raise UserError(
                "The KV cache is too small for a single episode: lower rollout.max_tokens or raise "
                "engine.gpu_memory_utilization."
            )
        self._launch(entering)

    def _launch(self, entering: list[tuple[SessionUpdate, PrefillChunk]]) -> None:
        if entering:
            self._device.update_sessions([update for update, _ in entering])
        for chunks in self._batches([chunk for _, chunk in entering if chunk.ids]):
            self._device.prefill(chunks)

    def _allocate(self, request: Request) -> PrefillChunk | None:
        """Allocate pages for the whole turn and return the uncached context; None if there are too few pages."""
        slot = request.slot
        slot.busy = True
        begins = slot.cached == 0
        if begins:
            slot.placed = 0  # shared pages may end inside an image that came after an eviction
        shared = self._page_table.share_prefix(slot) if begins else 0
        while not self._page_table.reserve(slot, len(slot.ids) + request.sampling.max_tokens):
            if not self._evict():
                self._page_table.release(slot)
                slot.busy = False
                return None
        slot.used = self.counts["passes"]
        past, end = slot.cached, len(slot.ids) - 1
        if begins:
            self._page_table.register(slot, shared)
        self.counts["shared_tokens"] += shared
        self.counts["context_tokens"] += end + 1 - past
        slot.cached = end
        return PrefillChunk(slot.index, past, slot.ids[past:end], self._place(slot, past))

    def _place(self, slot: PagedSlot, past: int) -> Tensor | None:
        """Return the rotary positions of the context from `past` to its last token, which decoding places.

        None if no image before or among them is placed in a grid.
        """
        grid = self._device.grid
        if grid is None:
            return None
        known = 0 < slot.placed <= past  # in all turns but the first, unless the session was evicted
        first, start = (past, past + slot.shift) if known else (0, 0)
        new = slot.ids[first:]
        if min(new) >= 0 and start == first:
            slot.placed, slot.shift = len(slot.ids), 0
            return None
        rotary, end = grid.place(new, start)
        slot.placed, slot.shift = len(slot.ids), end - len(slot.ids)
        return rotary[:, past - first : -1]

    def _evict(self) -> bool:
        """Free the pages of the idle session that was used longest ago. Its context is prefilled again when needed."""
        idle = [slot for slot in self._claimed.values() if slot.pages and not slot.busy]
        if not idle:
            return False
        slot = min(idle, key=lambda slot: slot.used)
        self.counts["evicted_tokens"] += slot.cached
        self._page_table.release(slot)
        return True

    def _session_update(self, request: Request) -> SessionUpdate:
        slot, sampling = request.slot, request.sampling
        address = slot.address - (1 << 64) if slot.address >= 1 << 63 else slot.address
        return SessionUpdate(
            slot=slot.index,
            last=slot.ids[-1],
            length=len(slot.ids) - 1,
            counter=slot.sampled,
            address=address,
            left=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            pages=slot.pages,
            shift=slot.shift,
        )

    def _batches(self, chunks: list[PrefillChunk]) -> list[list[PrefillChunk]]:
        """Split the chunks so that no forward runs more than the device's `prefill_tokens`."""
        pieces = (chunk[start:end] for chunk in chunks for start, end in self._pieces(chunk.ids))
        return split_by_size(pieces, lambda piece: len(piece.ids), self._device.prefill_tokens)

    def _pieces(self, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of pieces that fit into a forward, and do not split images that must enter it whole."""
        start = 0
        while start < len(ids):
            end = min(start + self._device.prefill_tokens, len(ids))
            if self._device.whole_images:
                end = end_before_image(ids, end)
            if end == start:
                raise UserError(f"An image has more than {self._device.prefill_tokens} tokens. Return smaller images.")
            yield start, end
            start = end

    def _start(self) -> PendingPass | None:
        """Start sampling for all running requests; None if none has tokens left."""
        max_left = max((self._left(request) for request in self._running), default=0)
        if max_left <= 0:
            return None
        sets = [None if request.matcher is None else request.matcher.allowed() for request in self._running]
        constrained = any(allowed is not None for allowed in sets)
        steps = 1 if constrained else min(self._steps, max_left)
        truncates = any(request.sampling.top_p < 1 or request.sampling.top_k > 0 for request in self._running)
        slots = [request.slot.index for request in self._running]
        transfer = self._device.decode(slots, steps, truncates, sets if constrained else None)
        for request in self._running:
            self._issued[request] += steps
        return PendingPass(transfer, list(self._running))

    def _read(self, pending: PendingPass) -> list[Request]:
        tokens, logprobs = pending.transfer.wait()
        done = []
        for request, row, numbers in zip(pending.requests, tokens, logprobs, strict=True):
            if request in self._issued:
                self._take(request, row, numbers)
                if request.stop is not None:
                    done.append(request)
                    self._finish(request)
        if done:
            self._running = [request for request in self._running if request.stop is None]
        return done

    def _take(self, request: Request, tokens: list[int], logprobs: list[float]) -> None:
        """Take the tokens up to the end of the turn. The device detects all ends but stop strings."""
        count = tokens.index(-1) if tokens[-1] < 0 else len(tokens)
        self.counts["idle_rows"] += len(tokens) - count
        if request.sampling.stop:
            count = self._until_stop_string(request, tokens[:count])
        if count:
            request.ids += tokens[:count]
            request.logprobs += logprobs[:count]
            request.stop = stop_reason(request, self._stop_ids, self._decode_text)
            if request.matcher is not None:
                request.matcher.accept(tokens[0])

    def _until_stop_string(self, request: Request, tokens: list[int]) -> int:
        """Return the number of tokens up to the end of the turn, the last one included."""
        trial = SampledTurn(sampling=request.sampling, ids=list(request.ids))
        for number, token in enumerate(tokens, start=1):
            trial.ids.append(token)
            if stop_reason(trial, self._stop_ids, self._decode_text) is not None:
                return number
        return len(tokens)

    def _finish(self, request: Request) -> None:
        """Store the turn. Its last token enters the cache with the next turn."""
        slot = request.slot
        slot.busy = False
        slot.ids += request.ids
        slot.sampled += len(request.ids)
        slot.cached = len(slot.ids) - 1
        self.counts["sampled_tokens"] += len(request.ids)
        self._page_table.release(slot, keep=-(-len(slot.ids) // PAGE))
        del self._issued[request]


def build_paged_runner(
    model: Any,
    *,
    slots: int,
    longest: int,
    stop_ids: Iterable[int],
    decode: Callable[[list[int]], str],
    steps: int = 4,
    share: float = 0.4,
    pages: int | None = None,
    prefill_tokens: int = PREFILL_TOKENS,
) -> PagedRunner:
    """Build the runner of a model.

    `longest`: maximum context length in tokens. `share`: maximum share of the free memory for the KV cache.
    """
    check_attention(model)
    head = output_head(model)
    if head is None:
        raise UserError(
            f"The GPU engine does not support how {type(model).__name__} computes its logits: "
            "set model.device to cpu, or choose another model."
        )
    shape = cache_shape(model)
    if pages is None:
        page_size = page_bytes(shape, head.weight.dtype)
        pages = pages_that_fit(page_size, max_pages(slots, longest), head.weight.device, share)
    stops = tuple(stop_ids)
    device = Device(
        model,
        head,
        shape,
        slots=slots,
        width=-(-longest // PAGE),
        pages=pages,
        stop_ids=stops,
        prefill_tokens=prefill_tokens,
    )
    return PagedRunner(device, pages=pages, stop_ids=stops, decode=decode, steps=steps)
