"""Functions of the device captured as graphs: one launch in place of hundreds."""

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnwise.engine.paged import reference
from turnwise.engine.paged.cache import CacheShape, PagedCache, PagedPlan
from turnwise.engine.paged.state import SampledTokens, SessionState
from turnwise.models.attention.operator import use_plan
from turnwise.models.head import OutputHead
from turnwise.models.memory.allocator import freeze_gc

logger = logging.getLogger(__name__)


class CudaGraphs:
    """What is captured reads and writes fixed places in memory: new weights need no new capture, new shapes do."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: dict[Hashable, Callable[[], None]] = {}
        self._memory: Any = None
        self.captures = 0
        self.seconds = 0.0
        """Spent on capturing so far."""

    def has(self, key: Hashable) -> bool:
        return key in self._graphs

    def run(self, key: Hashable) -> None:
        self._graphs[key]()

    def add(self, key: Hashable, function: Callable[[], None]) -> None:
        """Runs the function some times, and captures it: it must do no harm then."""
        if self._device.type != "cuda":
            self._graphs[key] = function
            return
        began = time.perf_counter()
        self.captures += 1
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(aside)
        self._graphs[key] = self._captured(function)
        freeze_gc()  # what compiling left behind never goes
        self.seconds += time.perf_counter() - began

    def _captured(self, function: Callable[[], None]) -> Callable[[], None]:
        """The graph's replay; the function itself where it does what no graph can hold."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._memory):
                function()
        except RuntimeError as error:
            logger.warning("this model cannot be captured, and decodes several times slower: %s", error)
            return function
        self._memory = graph.pool()
        return graph.replay

    def forget(self) -> None:
        """Their memory goes back with the next cleaning of torch's own."""
        self._graphs.clear()
        self._memory = None


MAX_STEPS = 16
"""Tokens a session that can be sampled before the host looks, at most."""
MIN_ROWS, MIN_TOKENS = 16, 256
"""Of the smallest graphs."""


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """What the device has to know of a session that is answered."""

    slot: int
    last: int
    length: int
    counter: int
    address: int
    left: int
    temperature: float
    top_p: float
    top_k: int
    pages: Sequence[int]


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens of one session that enter the cache behind `past` others."""

    slot: int
    past: int
    ids: Sequence[int]


def bucket(size: int, least: int) -> int:
    """The next of least, 2 * least, 3 * least, 4 * least, 6 * least, 8 * least, ...: few sizes, little waste."""
    found = least
    while found < size:
        found *= 2
    return found * 3 // 4 if found > 2 * least and found * 3 // 4 >= size else found


class Device:
    def __init__(
        self,
        model: Any,
        head: OutputHead,
        shape: CacheShape,
        *,
        slots: int,
        width: int,
        pages: int,
        stop_ids: Sequence[int],
        prefill_tokens: int,
    ) -> None:
        self.trunk, self.head = model.base_model, head
        self.place = head.weight.device
        self.sessions = SessionState.empty(slots, width, self.place)
        self.pages = PagedCache(shape, pages, head.weight.dtype, self.place)
        self.graphs = CudaGraphs(self.place)
        self.stop_ids = torch.tensor(sorted(stop_ids) or [-1], device=self.place)
        self.prefill_tokens = prefill_tokens
        rows = bucket(slots, MIN_ROWS)
        self.drawn = SampledTokens.empty(MAX_STEPS, rows, self.place)
        self.rows = torch.full((rows,), self.sessions.nobody, dtype=torch.int32, device=self.place)
        self.starts = torch.arange(rows, dtype=torch.int32, device=self.place)
        self.block_tokens = max(
            1, 64 // _next_power_of_2(model.config.num_attention_heads // min(kv for kv, _ in shape))
        )
        most = bucket(prefill_tokens, MIN_TOKENS)
        self.new = torch.zeros(3, most, dtype=torch.int64, device=self.place)
        """Of tokens that enter the cache: ids, positions, slots."""
        self.blocks = torch.zeros(4, most // self.block_tokens + rows, dtype=torch.int32, device=self.place)

    def sleep(self) -> None:
        """Gives back the memory of keys and values, and of the graphs that read it."""
        if not self.pages.layers:
            return
        if self.place.type == "cuda":
            torch.cuda.synchronize(self.place)  # what was sent last may still run
        self.graphs.forget()
        self.pages.give_back()
        if self.place.type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Takes that memory again, if it was given back; graphs are captured as they are needed."""
        self.pages.take()

    @torch.no_grad()
    def arrive(self, arrivals: Sequence[SessionUpdate]) -> None:
        """Makes the device know these sessions."""
        ints = [
            [each.slot, each.last, each.length, each.counter, each.address, each.left, each.top_k] for each in arrivals
        ]
        slot, last, length, counter, address, left, top_k = self._moved(torch.tensor(ints).T).unbind()
        floats = self._moved(torch.tensor([[each.temperature, each.top_p] for each in arrivals]).T)
        width = self.sessions.tables.shape[1]
        tables = [[*each.pages, *[0] * (width - len(each.pages))] for each in arrivals]
        sessions = self.sessions
        sessions.last[slot] = last
        sessions.lengths[slot] = length.int()
        sessions.counters[slot] = counter
        sessions.addresses[slot] = address
        sessions.left[slot] = left.int()
        sessions.top_k[slot] = top_k
        sessions.temperatures[slot], sessions.top_p[slot] = floats[0], floats[1]
        sessions.tables[slot] = self._moved(torch.tensor(tables, dtype=torch.int32))

    @torch.no_grad()
    def fill(self, stretches: Sequence[PrefillChunk]) -> None:
        """Puts contexts into the cache, those of many sessions in one forward; their sessions have arrived."""
        tokens = sum(len(each.ids) for each in stretches)
        blocks = self._cut(stretches)
        size = bucket(tokens, MIN_TOKENS)
        room = size // self.block_tokens + len(self.rows)
        key = "fill", size
        if not self.graphs.has(key):
            self._nobody(size)
            self.graphs.add(key, lambda: self._fill(size, room))
        self.new[:, :size].copy_(self._moved(torch.from_numpy(self._columns(stretches, size))), non_blocking=True)
        self.blocks[3].zero_()
        self.blocks[:, : blocks.shape[1]].copy_(self._moved(torch.from_numpy(blocks)), non_blocking=True)
        self.graphs.run(key)

    def _columns(self, stretches: Sequence[PrefillChunk], size: int) -> np.ndarray:
        """Ids, positions and slots of the tokens, and of nobody behind them."""
        counts = np.array([len(each.ids) for each in stretches])
        tokens = int(counts.sum())
        columns = np.zeros((3, size), dtype=np.int64)
        columns[2] = self.sessions.nobody
        columns[0, :tokens] = np.fromiter(chain.from_iterable(each.ids for each in stretches), np.int64, tokens)
        starts = np.array([each.past for each in stretches]) - (counts.cumsum() - counts)
        columns[1, :tokens] = np.arange(tokens) + starts.repeat(counts)
        columns[2, :tokens] = np.array([each.slot for each in stretches]).repeat(counts)
        return columns

    def _cut(self, stretches: Sequence[PrefillChunk]) -> np.ndarray:
        """Each stretch in blocks: first token in the pass, slot, its position, tokens. [4, NB]"""
        counts = np.array([len(each.ids) for each in stretches])
        parts = -(-counts // self.block_tokens)
        inside = (np.arange(parts.sum()) - (parts.cumsum() - parts).repeat(parts)) * self.block_tokens
        starts, pasts = counts.cumsum() - counts, np.array([each.past for each in stretches])
        slots = np.array([each.slot for each in stretches])
        rows = (starts.repeat(parts) + inside, slots.repeat(parts), pasts.repeat(parts) + inside)
        return np.stack([*rows, np.minimum(self.block_tokens, counts.repeat(parts) - inside)]).astype(np.int32)

    def _nobody(self, size: int) -> None:
        """What a capture can run on without a trace."""
        self.new[:, :size] = torch.tensor([[0], [0], [self.sessions.nobody]], device=self.place)
        self.blocks.zero_()

    def _fill(self, size: int, room: int) -> None:
        ids, positions, slots = self.new[:, :size].unbind()
        plan = PagedPlan(
            self.pages,
            self.sessions.tables,
            slots=slots,
            positions=positions,
            blocks=self.blocks[:, :room],
            tokens=self.block_tokens,
        )
        self._hidden(plan, ids, positions)

    def _hidden(self, plan: PagedPlan, ids: Tensor, positions: Tensor) -> Tensor:
        with use_plan(plan):
            output = self.trunk(input_ids=ids[None], position_ids=positions[None], use_cache=False)
        return output.last_hidden_state[0]

    @torch.no_grad()
    def decode(self, slots: Sequence[int], steps: int, truncates: bool) -> "TokenTransfer":
        """A token for each of the slots, so many times; one with nothing left says no more."""
        size = bucket(len(slots), MIN_ROWS)
        key = "decode", size, truncates
        if not self.graphs.has(key):
            self.rows.fill_(self.sessions.nobody)
            self.drawn.cursor.zero_()
            self.graphs.add(key, lambda: self._decode(size, truncates))
        rows = [*slots, *[self.sessions.nobody] * (size - len(slots))]
        self.rows[:size].copy_(self._moved(torch.tensor(rows, dtype=torch.int32)), non_blocking=True)
        self.drawn.cursor.zero_()
        for _ in range(steps):
            self.graphs.run(key)
        return TokenTransfer(self.drawn, steps, len(slots))

    def _decode(self, size: int, truncates: bool) -> None:
        rows, sessions = self.rows[:size], self.sessions
        slots = rows.long()
        ids, positions = sessions.last[slots], sessions.lengths[slots]
        talks = sessions.left[slots] > 0
        plan = PagedPlan(
            self.pages,
            sessions.tables,
            slots=torch.where(talks, rows, sessions.nobody),
            positions=torch.where(talks, positions, 0),
            blocks=torch.stack([self.starts[:size], rows, positions, talks.int()]),
            tokens=1,
        )
        logits = self.head.logits(self._hidden(plan, ids, positions.long()))
        if logits.is_cuda and not truncates:
            from turnwise.engine.paged import kernels

            kernels.sample_step(logits, rows, sessions, self.stop_ids, self.drawn)
        else:
            reference.sample_step(logits, rows, sessions, self.stop_ids, self.drawn)
        self.drawn.cursor.add_(1)

    def _moved(self, tensor: Tensor) -> Tensor:
        if self.place.type == "cpu":
            return tensor
        return tensor.contiguous().pin_memory().to(self.place, non_blocking=True)


class TokenTransfer:
    """Tokens on their way to the host."""

    def __init__(self, drawn: SampledTokens, steps: int, rows: int) -> None:
        self.steps = steps
        tokens, logprobs = drawn.tokens[:steps, :rows], drawn.logprobs[:steps, :rows]
        if not tokens.is_cuda:
            self._tokens, self._logprobs, self._landed = tokens.clone(), logprobs.clone(), None
            return
        self._tokens = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True).copy_(tokens, non_blocking=True)
        self._logprobs = torch.empty(logprobs.shape, pin_memory=True).copy_(logprobs, non_blocking=True)
        self._landed = torch.cuda.Event()
        self._landed.record()

    def land(self) -> tuple[list[list[int]], list[list[float]]]:
        """Of each row the tokens, step by step, -1 where it said nothing, and their log-probabilities."""
        if self._landed is not None:
            self._landed.synchronize()
        return self._tokens.T.tolist(), self._logprobs.T.tolist()


def _next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()
