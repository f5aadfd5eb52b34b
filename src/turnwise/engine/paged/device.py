"""Device side of the paged engine: prefill and decoding steps, captured in CUDA graphs."""

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
from turnwise.models.allowed_tokens import mask_logits_, stack_sets
from turnwise.models.attention.operator import use_plan
from turnwise.models.head import OutputHead
from turnwise.models.memory.host import freeze_gc
from turnwise.models.vision.encoder import embed_images, image_encoder
from turnwise.models.vision.whole_images import attends_to_whole_images, tokens_ahead

logger = logging.getLogger(__name__)


class CudaGraphs:
    """Captured functions. They use fixed memory: new weights need no new capture, new shapes do."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: dict[Hashable, Callable[[], None]] = {}
        self._memory: Any = None
        self.captures = 0
        self.seconds = 0.0
        """Seconds spent on capturing so far."""

    def has(self, key: Hashable) -> bool:
        return key in self._graphs

    def run(self, key: Hashable) -> None:
        self._graphs[key]()

    def add(self, key: Hashable, function: Callable[[], None]) -> None:
        """Run the function twice as warm-up and capture it. Its inputs must make these runs harmless."""
        if self._device.type != "cuda":
            self._graphs[key] = function
            return
        began = time.perf_counter()
        self.captures += 1
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        self._graphs[key] = self._capture(function)
        freeze_gc()  # compilation leaves objects that live as long as the program
        self.seconds += time.perf_counter() - began

    def _capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Return the graph's replay, or the function itself if it cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                function()
        except RuntimeError as error:
            logger.warning("this model cannot be captured in a CUDA graph and decodes several times slower: %s", error)
            return function
        self._memory = graph.pool()
        return graph.replay

    def clear(self) -> None:
        """Drop all graphs. Their memory is released with the next `torch.cuda.empty_cache`."""
        self._graphs.clear()
        self._memory = None


MAX_STEPS = 16
"""Maximum of tokens per session that are sampled before the host reads them."""
MIN_ROWS, MIN_TOKENS = 16, 256
"""Sizes of the smallest graphs."""


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """State of a session when its request starts."""

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
    shift: int
    """Rotary position of the next token minus `length`."""


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens of one session that enter the cache after `past` others."""

    slot: int
    past: int
    ids: Sequence[int]
    rotary: Tensor | None = None
    """Rotary positions [3, T] if they are not those in the cache: after images in models that place them in a grid."""

    def __getitem__(self, part: slice) -> "PrefillChunk":
        rotary = None if self.rotary is None else self.rotary[:, part]
        return PrefillChunk(self.slot, self.past + part.start, self.ids[part], rotary)


def bucket(size: int, least: int) -> int:
    """Round up to least * (1, 2, 3, 4, 6, 8, 12, ...): few sizes, little padding."""
    rounded = least
    while rounded < size:
        rounded *= 2
    return rounded * 3 // 4 if rounded > 2 * least and rounded * 3 // 4 >= size else rounded


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
        self.encoder = image_encoder(model)
        self.grid = None if self.encoder is None or self.encoder.merge_size is None else self.encoder
        self.whole_images = attends_to_whole_images(model)
        self.device = head.weight.device
        self.sessions = SessionState.empty(slots, width, self.device)
        self.pages = PagedCache(shape, pages, head.weight.dtype, self.device)
        self.graphs = CudaGraphs(self.device)
        self.stop_ids = torch.tensor(sorted(stop_ids) or [-1], device=self.device)
        self.prefill_tokens = prefill_tokens
        rows = bucket(slots, MIN_ROWS)
        self.sampled = SampledTokens.empty(MAX_STEPS, rows, self.device)
        self.rows = torch.full((rows,), self.sessions.padding_slot, dtype=torch.int32, device=self.device)
        self.starts = torch.arange(rows, dtype=torch.int32, device=self.device)
        self.block_tokens = max(
            1, 64 // _next_power_of_2(model.config.get_text_config().num_attention_heads // min(kv for kv, _ in shape))
        )
        self.allowed: Tensor | None = None
        """Packed sets of the tokens that rows may sample, [rows, V / 8]; allocated with the first constraint."""
        most = bucket(prefill_tokens, MIN_TOKENS)
        self.new = torch.zeros(3, most, dtype=torch.int64, device=self.device)
        """Ids, positions and slots of the tokens that enter the cache."""
        self.blocks = torch.zeros(4, most // self.block_tokens + rows, dtype=torch.int32, device=self.device)

    def sleep(self) -> None:
        """Release the memory of the KV cache and of the graphs that read it."""
        if not self.pages.layers:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the last pass may still run
        self.graphs.clear()
        self.pages.release()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Allocate the cache again if it was released. Graphs are captured again when they are needed."""
        self.pages.allocate()

    @torch.no_grad()
    def update_sessions(self, updates: Sequence[SessionUpdate]) -> None:
        """Write the state of these sessions."""
        ints = [
            [
                update.slot,
                update.last,
                update.length,
                update.counter,
                update.address,
                update.left,
                update.top_k,
                update.shift,
            ]
            for update in updates
        ]
        slot, last, length, counter, address, left, top_k, shift = self._to_device(torch.tensor(ints).T).unbind()
        floats = self._to_device(torch.tensor([[update.temperature, update.top_p] for update in updates]).T)
        width = self.sessions.tables.shape[1]
        tables = [[*update.pages, *[0] * (width - len(update.pages))] for update in updates]
        sessions = self.sessions
        sessions.last[slot] = last
        sessions.lengths[slot] = length.int()
        sessions.counters[slot] = counter
        sessions.addresses[slot] = address
        sessions.left[slot] = left.int()
        if self.grid is not None:
            sessions.shifts[slot] = shift
        sessions.top_k[slot] = top_k
        sessions.temperatures[slot], sessions.top_p[slot] = floats[0], floats[1]
        sessions.tables[slot] = self._to_device(torch.tensor(tables, dtype=torch.int32))

    @torch.no_grad()
    def prefill(self, chunks: Sequence[PrefillChunk]) -> None:
        """Put context tokens of several sessions into the cache in one forward, after `update_sessions`."""
        tokens = sum(len(chunk.ids) for chunk in chunks)
        blocks = self._split_blocks(chunks)
        size = bucket(tokens, MIN_TOKENS)
        block_count = size // self.block_tokens + len(self.rows)
        key = "prefill", size
        with_images = self.encoder is not None and any(
            min(chunk.ids) < 0 or chunk.rotary is not None for chunk in chunks
        )
        if not with_images and not self.graphs.has(key):
            self._set_padding(size)
            self.graphs.add(key, lambda: self._prefill(size, block_count))
        columns = torch.from_numpy(self._columns(chunks, size))
        self.new[:, :size].copy_(self._to_device(columns), non_blocking=True)
        self.blocks[3].zero_()
        self.blocks[:, : blocks.shape[1]].copy_(self._to_device(torch.from_numpy(blocks)), non_blocking=True)
        if with_images:  # features are computed on demand, which a graph cannot
            lengths = [*(len(chunk.ids) for chunk in chunks), size - tokens]
            ahead = tokens_ahead(self.trunk, columns[0], lengths)
            with embed_images(self.trunk, columns[0]) as ids:
                placed = self._rotary(chunks, size), None if ahead is None else self._to_device(ahead)
                self._prefill(size, block_count, ids, *placed)
        else:
            self.graphs.run(key)

    def _rotary(self, chunks: Sequence[PrefillChunk], size: int) -> Tensor | None:
        """Return the rotary positions of the tokens, followed by padding, [3, N]; None: those in the cache."""
        if self.grid is None:
            return None
        rows = [
            torch.arange(chunk.past, chunk.past + len(chunk.ids)).expand(3, -1)
            if chunk.rotary is None
            else chunk.rotary
            for chunk in chunks
        ]
        rows.append(torch.zeros(3, size - sum(row.shape[1] for row in rows), dtype=torch.int64))
        return self._to_device(torch.cat(rows, dim=1))

    def _columns(self, chunks: Sequence[PrefillChunk], size: int) -> np.ndarray:
        """Return ids, positions and slots of the tokens, followed by padding."""
        counts = np.array([len(chunk.ids) for chunk in chunks])
        tokens = int(counts.sum())
        columns = np.zeros((3, size), dtype=np.int64)
        columns[2] = self.sessions.padding_slot
        columns[0, :tokens] = np.fromiter(chain.from_iterable(chunk.ids for chunk in chunks), np.int64, tokens)
        starts = np.array([chunk.past for chunk in chunks]) - (counts.cumsum() - counts)
        columns[1, :tokens] = np.arange(tokens) + starts.repeat(counts)
        columns[2, :tokens] = np.array([chunk.slot for chunk in chunks]).repeat(counts)
        return columns

    def _split_blocks(self, chunks: Sequence[PrefillChunk]) -> np.ndarray:
        """Split each chunk into blocks: index of the first token, slot, its position, number of tokens. [4, NB]"""
        counts = np.array([len(chunk.ids) for chunk in chunks])
        parts = -(-counts // self.block_tokens)
        inside = (np.arange(parts.sum()) - (parts.cumsum() - parts).repeat(parts)) * self.block_tokens
        starts, pasts = counts.cumsum() - counts, np.array([chunk.past for chunk in chunks])
        slots = np.array([chunk.slot for chunk in chunks])
        rows = (starts.repeat(parts) + inside, slots.repeat(parts), pasts.repeat(parts) + inside)
        return np.stack([*rows, np.minimum(self.block_tokens, counts.repeat(parts) - inside)]).astype(np.int32)

    def _set_padding(self, size: int) -> None:
        """Fill the inputs with padding, on which a capture can run without effect."""
        self.new[:, :size] = torch.tensor([[0], [0], [self.sessions.padding_slot]], device=self.device)
        self.blocks.zero_()

    def _prefill(
        self,
        size: int,
        block_count: int,
        ids: Tensor | None = None,
        rotary: Tensor | None = None,
        ahead: Tensor | None = None,
    ) -> None:
        """`ids`, `rotary`: in place of the ids to embed and of the positions in the cache. `ahead`: see `PagedPlan`."""
        own, positions, slots = self.new[:, :size].unbind()
        plan = PagedPlan(
            self.pages,
            self.sessions.tables,
            slots=slots,
            positions=positions,
            blocks=self.blocks[:, :block_count],
            tokens=self.block_tokens,
            ahead=ahead,
        )
        self._hidden(plan, own if ids is None else ids, positions if rotary is None else rotary)

    def _hidden(self, plan: PagedPlan, ids: Tensor, positions: Tensor) -> Tensor:
        with use_plan(plan):
            output = self.trunk(input_ids=ids[None], position_ids=positions.unsqueeze(-2), use_cache=False)
        return output.last_hidden_state[0]

    @torch.no_grad()
    def decode(
        self, slots: Sequence[int], steps: int, truncates: bool, sets: Sequence[bytes | None] | None = None
    ) -> "TokenTransfer":
        """Start sampling `steps` tokens for each of the slots. A slot whose token budget is used up stops.

        `sets`: packed set of the tokens that each slot may sample in a single step, None: all. None if all may.
        """
        size = bucket(len(slots), MIN_ROWS)
        key = "decode", size, truncates, sets is not None
        if sets is not None:
            self._write_sets(sets)
        if not self.graphs.has(key):
            self.rows.fill_(self.sessions.padding_slot)
            self.sampled.cursor.zero_()
            self.graphs.add(key, lambda: self._decode(size, truncates, sets is not None))
        rows = [*slots, *[self.sessions.padding_slot] * (size - len(slots))]
        self.rows[:size].copy_(self._to_device(torch.tensor(rows, dtype=torch.int32)), non_blocking=True)
        self.sampled.cursor.zero_()
        for _ in range(steps):
            self.graphs.run(key)
        return TokenTransfer(self.sampled, steps, len(slots))

    def _write_sets(self, sets: Sequence[bytes | None]) -> None:
        """Write the sets into memory that the graphs of constrained steps read. Other rows may sample any token."""
        if self.allowed is None:
            shape = len(self.rows), -(-self.head.weight.shape[0] // 8)
            self.allowed = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        self.allowed.fill_(255)
        width = self.allowed.shape[1]
        numbers = [number for number, allowed in enumerate(sets) if allowed is not None]
        packed = stack_sets([allowed[:width].ljust(width, b"\0") for allowed in sets if allowed is not None])
        self.allowed[self._to_device(torch.tensor(numbers))] = self._to_device(packed)

    def _decode(self, size: int, truncates: bool, constrained: bool) -> None:
        rows, sessions = self.rows[:size], self.sessions
        slots = rows.long()
        ids, positions = sessions.last[slots], sessions.lengths[slots]
        active = sessions.left[slots] > 0
        plan = PagedPlan(
            self.pages,
            sessions.tables,
            slots=torch.where(active, rows, sessions.padding_slot),
            positions=torch.where(active, positions, 0),
            blocks=torch.stack([self.starts[:size], rows, positions, active.int()]),
            tokens=1,
        )
        rotary = positions.long() if self.grid is None else positions.long() + sessions.shifts[slots]
        logits = self.head.logits(self._hidden(plan, ids, rotary))
        if constrained and self.allowed is not None:
            logits = mask_logits_(logits, self.allowed[:size])
        if logits.is_cuda and not truncates:
            from turnwise.engine.paged import kernels

            kernels.sample_step(logits, rows, sessions, self.stop_ids, self.sampled)
        else:
            reference.sample_step(logits, rows, sessions, self.stop_ids, self.sampled)
        self.sampled.cursor.add_(1)

    def _to_device(self, tensor: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return tensor
        return tensor.contiguous().pin_memory().to(self.device, non_blocking=True)


class TokenTransfer:
    """Asynchronous copy of sampled tokens to the host."""

    def __init__(self, sampled: SampledTokens, steps: int, rows: int) -> None:
        self.steps = steps
        tokens, logprobs = sampled.tokens[:steps, :rows], sampled.logprobs[:steps, :rows]
        if not tokens.is_cuda:
            self._tokens, self._logprobs, self._copied = tokens.clone(), logprobs.clone(), None
            return
        self._tokens = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True).copy_(tokens, non_blocking=True)
        self._logprobs = torch.empty(logprobs.shape, pin_memory=True).copy_(logprobs, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()

    def wait(self) -> tuple[list[list[int]], list[list[float]]]:
        """Return the tokens of each row, step by step (-1: none), and their log-probabilities."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._tokens.T.tolist(), self._logprobs.T.tolist()


def _next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()
