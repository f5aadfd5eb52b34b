"""What one pass does on a device: new contexts enter the cache, every row samples some tokens, the host reads.

The host looks at what a pass sampled while the device runs the next one. A session whose turn has ended then says
nothing more, and what was sampled after the end of a turn is forgotten: its random numbers are drawn again.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from turnwise.core.errors import UserError
from turnwise.engine.native.requests import Request, stop_reason
from turnwise.engine.paged.cache import cache_shape, max_pages, page_bytes, pages_that_fit
from turnwise.engine.paged.device import MAX_STEPS, Device, PrefillChunk, SessionUpdate, TokenTransfer
from turnwise.engine.paged.page_table import PagedSlot, PageTable
from turnwise.engine.paged.state import PAGE
from turnwise.models.attention.interface import check_attention
from turnwise.models.head import output_head

COUNTS = ("passes", "context_tokens", "shared_tokens", "sampled_tokens", "evicted_tokens", "idle_rows")


@dataclass(frozen=True, slots=True)
class PendingPass:
    """A flight, and whose tokens are in it."""

    flight: TokenTransfer
    requests: list[Request]


class PagedRunner:
    """`steps`: tokens a session in a pass."""

    def __init__(
        self, device: Device, *, pages: int, stop_ids: Iterable[int], decode: Callable[[list[int]], str], steps: int = 4
    ) -> None:
        if not 1 <= steps <= MAX_STEPS:
            raise ValueError(f"1 to {MAX_STEPS} steps a pass")
        self.counts = dict.fromkeys(COUNTS, 0)
        self._device, self._steps = device, steps
        self._book = PageTable(pages)
        self._stop_ids, self._decode_text = frozenset(stop_ids), decode
        self._held: dict[int, PagedSlot] = {}
        self._free = self._all_slots()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._issued: dict[Request, int] = {}
        """Tokens that a running request has been sampled, or is about to."""
        self._sent: PendingPass | None = None

    def claim(self, address: int) -> PagedSlot:
        """A place for a session; the caller sees to it that one is left."""
        slot = PagedSlot(index=self._free.pop(), address=address)
        self._held[slot.index] = slot
        return slot

    def release(self, slot: PagedSlot) -> None:
        """Ends what the slot still ran."""
        if slot.busy:
            self._running = [request for request in self._running if request.slot is not slot]
            self._issued = {request: steps for request, steps in self._issued.items() if request.slot is not slot}
            slot.busy = False
        if self._waiting:
            self._waiting = deque(request for request in self._waiting if request.slot is not slot)
        self._book.release(slot)
        del self._held[slot.index]
        self._free.append(slot.index)
        if not self._held:  # equal rounds begin equally, whatever was played before them
            self._free = self._all_slots()
            self._book.order_free_pages()

    def _all_slots(self) -> list[int]:
        """Every slot, the first one last: slots are taken from the end."""
        return list(range(self._device.sessions.nobody - 1, -1, -1))

    @property
    def capture_s(self) -> float:
        return self._device.graphs.seconds

    def sleep(self) -> None:
        """Only where nobody holds a place: no page then holds anything."""
        if self._held:
            raise RuntimeError("a session lives: its pages cannot be given back")
        self._sent = None
        self._device.sleep()

    def run_pass(self, arrived: list[Request]) -> list[Request]:
        """Returns those that are done: with what was sampled in the pass before."""
        self._device.wake()
        self.counts["passes"] += 1
        self._waiting += sorted(arrived, key=lambda request: request.slot.index)
        self._admit()
        sent, self._sent = self._sent, self._send()
        if sent is None and self._sent is not None and not self._goes_on():
            sent, self._sent = self._sent, None
        return [] if sent is None else self._read(sent)

    def _goes_on(self) -> bool:
        """Whether a pass after the one on its way could sample anything."""
        return any(self._left(request) > 0 for request in self._running)

    def _left(self, request: Request) -> int:
        return request.sampling.max_tokens - self._issued[request]

    def _admit(self) -> None:
        """Gives those who wait their pages, in their order, as far as there are any, and fills these.

        The first ones are sent on their way early: the device fills their pages while the host goes on.
        """
        entering, tokens, enough = list[tuple[SessionUpdate, PrefillChunk]](), 0, self._device.prefill_tokens // 4
        while self._waiting and (stretch := self._place(self._waiting[0])) is not None:
            request = self._waiting.popleft()
            request.taken = True
            self._running.append(request)
            self._issued[request] = 0
            entering.append((self._arrival(request), stretch))
            tokens += len(stretch.ids)
            if tokens >= enough:
                self._enter(entering)
                entering, tokens, enough = [], 0, self._device.prefill_tokens
        if self._waiting and not self._running:
            raise UserError(
                "the GPU's memory for keys and values holds not even one episode: "
                "lower rollout.max_tokens, or raise system.cache_share"
            )
        self._enter(entering)

    def _enter(self, entering: list[tuple[SessionUpdate, PrefillChunk]]) -> None:
        if entering:
            self._device.arrive([arrival for arrival, _ in entering])
        for part in self._parts([stretch for _, stretch in entering if stretch.ids]):
            self._device.fill(part)

    def _place(self, request: Request) -> PrefillChunk | None:
        """Pages for the whole turn, and what of the context is not in the cache yet; None: no room."""
        slot = request.slot
        slot.busy = True
        begins = slot.cached == 0
        shared = self._book.share(slot) if begins else 0
        while not self._book.reserve(slot, len(slot.ids) + request.sampling.max_tokens):
            if not self._evict():
                self._book.release(slot)
                slot.busy = False
                return None
        slot.used = self.counts["passes"]
        past, end = slot.cached, len(slot.ids) - 1
        if begins:
            self._book.tell(slot, shared)
        self.counts["shared_tokens"] += shared
        self.counts["context_tokens"] += end + 1 - past
        slot.cached = end
        return PrefillChunk(slot.index, past, slot.ids[past:end])

    def _evict(self) -> bool:
        """Drops what a session that waits for its world has in the cache; its ids bring it back."""
        idle = [slot for slot in self._held.values() if slot.pages and not slot.busy]
        if not idle:
            return False
        slot = min(idle, key=lambda each: each.used)
        self.counts["evicted_tokens"] += slot.cached
        self._book.release(slot)
        return True

    def _arrival(self, request: Request) -> SessionUpdate:
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
        )

    def _parts(self, stretches: list[PrefillChunk]) -> list[list[PrefillChunk]]:
        """Cut so that no forward runs more new tokens than the device has room for."""
        parts, tokens, most = list[list[PrefillChunk]](), 0, self._device.prefill_tokens
        for stretch in stretches:
            for start in range(0, len(stretch.ids), most):
                piece = PrefillChunk(stretch.slot, stretch.past + start, stretch.ids[start : start + most])
                if not parts or tokens + len(piece.ids) > most:
                    parts.append([])
                    tokens = 0
                parts[-1].append(piece)
                tokens += len(piece.ids)
        return parts

    def _send(self) -> PendingPass | None:
        """Starts the next tokens of all rows; nothing where no row can have any left."""
        most = max((self._left(request) for request in self._running), default=0)
        if most <= 0:
            return None
        steps = min(self._steps, most)
        truncates = any(each.sampling.top_p < 1 or each.sampling.top_k > 0 for each in self._running)
        flight = self._device.decode([request.slot.index for request in self._running], steps, truncates)
        for request in self._running:
            self._issued[request] += steps
        return PendingPass(flight, list(self._running))

    def _read(self, sent: PendingPass) -> list[Request]:
        tokens, logprobs = sent.flight.land()
        done = []
        for request, row, numbers in zip(sent.requests, tokens, logprobs, strict=True):
            if request in self._issued:
                self._take(request, row, numbers)
                if request.stop is not None:
                    done.append(request)
                    self._finish(request)
        if done:
            self._running = [request for request in self._running if request.stop is None]
        return done

    def _take(self, request: Request, tokens: list[int], logprobs: list[float]) -> None:
        """What was sampled up to the end of the turn; the device knows all ends but stop strings."""
        said = tokens.index(-1) if tokens[-1] < 0 else len(tokens)
        self.counts["idle_rows"] += len(tokens) - said
        if request.sampling.stop:
            said = self._until_string(request, tokens[:said])
        if said:
            request.ids += tokens[:said]
            request.logprobs += logprobs[:said]
            request.stop = stop_reason(request, self._stop_ids, self._decode_text)

    def _until_string(self, request: Request, tokens: list[int]) -> int:
        """How many of the tokens come before the turn ends, the one that ends it included."""
        tried = Request(slot=None, sampling=request.sampling, ids=list(request.ids))
        for number, token in enumerate(tokens, start=1):
            tried.ids.append(token)
            if stop_reason(tried, self._stop_ids, self._decode_text) is not None:
                return number
        return len(tokens)

    def _finish(self, request: Request) -> None:
        """The last token enters the cache with the next turn."""
        slot = request.slot
        slot.busy = False
        slot.ids += request.ids
        slot.sampled += len(request.ids)
        slot.cached = len(slot.ids) - 1
        self.counts["sampled_tokens"] += len(request.ids)
        self._book.release(slot, keep=-(-len(slot.ids) // PAGE))
        del self._issued[request]


PREFILL_TOKENS = 16384
"""New tokens of one forward, at most."""


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
    """`longest`: tokens of a context, at most. `share`: of the free memory, at most, for keys and values."""
    check_attention(model)
    head = output_head(model)
    if head is None:
        raise UserError(
            f"{type(model).__name__} makes its logits in a way that the engine on a GPU does not know: "
            "give --model.device cpu, or another model"
        )
    shape = cache_shape(model)
    if pages is None:
        each = page_bytes(shape, head.weight.dtype)
        pages = pages_that_fit(each, max_pages(slots, longest), head.weight.device, share)
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
