"""What one pass does: one forward over new contexts and running sessions, a token or more for each. No asyncio here."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, takewhile

import torch
from torch import Tensor, nn

from turnwise.engine.native.attention import MAX_NARROW_ROW, KVCache, QueryRow, SlotPlan
from turnwise.engine.native.requests import Request, stop_reason
from turnwise.engine.native.sampling import SamplingBatch, sample_batch
from turnwise.engine.native.speculation import MAX_DRAFT_TOKENS, NO_BIGRAM, Bigram, NgramDrafter, min_draft_probability
from turnwise.models.attention.interface import check_attention
from turnwise.models.forward import last_layer_index, restrict_last_layer

MIN_SHARED_PREFIX = 16
"""Prompts that begin alike for at least this many tokens are run once up to where they part."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedPrefix:
    """The first positions of several slots, filled with copies of the same keys and values."""

    length: int


@dataclass(slots=True, eq=False)
class CacheSlot:
    """One session's place: what its cache holds, what waits to be appended, how much it has sampled."""

    index: int
    address: int
    length: int = 0
    pending: list[int] = field(default_factory=list)
    sampled: int = 0
    prefix: SharedPrefix | None = None
    """What it shares with others that hold the same one."""
    tail: Bigram = NO_BIGRAM

    def append(self, ids: Sequence[int]) -> None:
        """More context, for the next pass."""
        self.pending.extend(ids)
        before, last = (*self.tail, *ids[-2:])[-2:]
        self.tail = (before, last)

    def restart(self) -> None:
        self.length, self.tail = 0, NO_BIGRAM
        self.pending.clear()


@dataclass(slots=True, eq=False)
class ScheduledSlot:
    """What one slot runs in a pass: its pending tokens, and a guess at what will be sampled after them."""

    slot: CacheSlot
    guess: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    """Of this slot, and of others with the same context, which are given copies."""

    @property
    def new(self) -> int:
        return len(self.slot.pending) + len(self.guess)

    @property
    def read(self) -> int:
        """Of how many tokens, the last ones, the logits are read."""
        return 1 + len(self.guess)


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
        check_attention(model)
        self.model = model
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self.counts = dict.fromkeys(
            ("passes", "context_tokens", "shared_tokens", "sampled_tokens", "guessed_tokens", "right_guesses"), 0
        )
        self.running: list[Request] = []
        self._last_layer = last_layer_index(model)
        self._cache = KVCache(slots)
        self._held: dict[int, CacheSlot] = {}  # by index
        self._free: list[int] = []
        self._stop_ids = frozenset(stop_ids)
        self._guesser = NgramDrafter(self._stop_ids)
        self._decode_text = decode
        self._prefill_tokens = prefill_tokens

    @torch.inference_mode()
    def run_pass(self, arrived: list[Request]) -> list[Request]:
        """A token or more for every session: those that arrived run their new context, in one forward with all others.

        Returns those that are done.
        """
        self.counts["passes"] += 1
        self._close_up()
        running = [request for request in self.running if request.stop is None]
        *earlier, last = self._chunks(self._alike(arrived)) or [[]]
        for chunk in earlier:
            self._forward(chunk)
        self._forward([*last, *([request] for request in running)])
        for request in arrived:
            request.taken = True
        taken = [*arrived, *running]
        self.running = [request for request in taken if request.stop is None]
        return [request for request in taken if request.stop is not None]

    capture_s = 0.0
    """There are no graphs."""

    def sleep(self) -> None:
        """What the host caches stays: it is in nobody's way."""

    def claim(self, address: int) -> CacheSlot:
        """A place for a session; the caller sees to it that one is left."""
        slot = CacheSlot(index=self._free.pop() if self._free else len(self._held), address=address)
        self._held[slot.index] = slot
        return slot

    def release(self, slot: CacheSlot) -> None:
        """Ends what the slot still ran."""
        self.running = [request for request in self.running if request.slot is not slot]
        del self._held[slot.index]
        self._free.append(slot.index)
        if not self._held:  # equal rounds begin equally, whatever was played before them
            self._free.clear()
            self._guesser.forget()

    def _close_up(self) -> None:
        """The last slots move into places that are free, so that decoding reads no empty slots."""
        for index in sorted(self._free):
            last = max(self._held)
            if last < index:
                break
            slot = self._held.pop(last)
            self._cache.copy(last, [index], slot.length)
            slot.index = index
            self._held[index] = slot
        self._free.clear()

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

    def _share_prefix(self, groups: list[list[CacheSlot]]) -> None:
        """Runs what the first prompts have in common once, and copies it to their slots. Slots of a group are equal."""
        leaders = [leader for leader, *_ in groups]
        columns = zip(*(slot.pending[:-1] for slot in leaders), strict=False)
        shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
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
        """Gives the targets what the source's cache holds, in place of as many of their pending tokens."""
        if not targets:
            return
        self._cache.copy(source.index, [slot.index for slot in targets], positions)
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

    def _forward(self, groups: list[list[Request]]) -> None:
        """One forward for new contexts and running sessions alike, and what it gives each of them."""
        if not groups:
            return
        least = min_draft_probability(sum(map(len, groups)), self._parameters)
        lines = [ScheduledSlot(group[0].slot, self._guess(group, least), group) for group in groups]
        lines.sort(key=lambda line: (line.new <= MAX_NARROW_ROW, line.slot.index))
        logits = self._logits(lines)
        for line in lines:
            others = [request.slot for request in line.requests[1:]]
            self._copy(line.slot, others, line.slot.length + len(line.guess))
        self._sample(lines, logits)

    def _guess(self, group: list[Request], least: float) -> list[int]:
        left = min(request.sampling.max_tokens - len(request.ids) for request in group)
        return self._guesser.guess(group[0].slot.tail, most=min(MAX_DRAFT_TOKENS, left - 1), least=least)

    def _logits(self, lines: list[ScheduledSlot]) -> Tensor:
        """Appends pending tokens to the caches, and guesses after them; logits after each token that is read."""
        tokens = [token for line in lines for token in (*line.slot.pending, *line.guess)]
        ends = accumulate(line.new for line in lines)
        read = [place for end, line in zip(ends, lines, strict=True) for place in range(end - line.read, end)]
        plan = self._plan(lines)
        for line in lines:
            if len(line.slot.pending) > 1:
                self.counts["context_tokens"] += len(line.slot.pending)
            line.slot.length += len(line.slot.pending)
            line.slot.pending.clear()
        if len(read) == len(tokens):
            return self._run(tokens, plan)
        keep = torch.tensor(read)
        with restrict_last_layer(self.model, keep):
            return self._run(tokens, plan, logits_to_keep=keep)

    def _plan(self, lines: list[ScheduledSlot]) -> SlotPlan:
        self._cache.reserve(max(line.slot.length + line.new for line in lines))
        prefixes = {line.slot.prefix for line in lines}
        prefix = prefixes.pop() if len(prefixes) == 1 < len(lines) else None
        stretches = [QueryRow(line.slot.index, line.slot.length, line.new, line.read) for line in lines]
        return SlotPlan(self._cache, stretches, shared=0 if prefix is None else prefix.length, last=self._last_layer)

    def _run(self, tokens: list[int], plan: SlotPlan, **options: Tensor) -> Tensor:
        ids, positions = torch.tensor(tokens)[None], plan.positions[None]
        return self.model(input_ids=ids, position_ids=positions, plan=plan, use_cache=False, **options).logits[0]

    def _sample(self, lines: list[ScheduledSlot], logits: Tensor) -> None:
        """Draws at every position that was read; each request takes what it was drawn up to the first wrong guess."""
        draws, row = SamplingBatch(), 0
        for line in lines:
            for request in line.requests:
                slot = request.slot
                draws.add(
                    row=row, address=slot.address, counter=slot.sampled, setting=request.sampling, count=line.read
                )
            row += line.read
        drawn = sample_batch(logits, draws)
        place = 0
        for line in lines:
            for request in line.requests:
                self._take(request, line.guess, drawn[place : place + line.read])
                place += line.read

    def _take(self, request: Request, guess: list[int], drawn: list[tuple[int, float]]) -> None:
        """The last token taken enters the cache with the next pass; those before it were guessed, and are there."""
        slot = request.slot
        for number, (token, logprob) in enumerate(drawn):
            request.ids.append(token)
            request.logprobs.append(logprob)
            request.stop = stop_reason(request, self._stop_ids, self._decode_text)
            self._guesser.learn(slot.tail, token)
            slot.tail = (slot.tail[1], token)
            if request.stop is not None or number == len(guess) or token != guess[number]:
                break
        slot.sampled += number + 1
        slot.length += number
        slot.pending.append(token)
        self.counts["sampled_tokens"] += number + 1
        self.counts["guessed_tokens"] += len(guess)
        self.counts["right_guesses"] += number
