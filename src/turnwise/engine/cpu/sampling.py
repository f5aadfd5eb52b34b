"""Sampling: a hash of the token's address gives the random number, the inverse CDF gives the token.

Speculative decoding: half of an agent's turn is fixed text, such as tags and the form of a call. A drafter predicts
what followed the same two tokens before, in any session, so that one pass can yield several tokens. Drafts never change
what is sampled: a pass also runs the draft tokens, each position samples its token with the random number that it would
have had anyway, and tokens after a wrong draft are discarded.
"""

import ctypes
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnwise.core.protocols import Sampling
from turnwise.engine.cpu.kernels import call_kernel, optional_kernels


def _signed(number: int) -> int:
    """Return the 64-bit pattern as the int64 that torch uses."""
    return number - (1 << 64) if number >= 1 << 63 else number


GOLDEN = _signed(0x9E3779B97F4A7C15)
MIX_1 = _signed(0xBF58476D1CE4E5B9)
MIX_2 = _signed(0x94D049BB133111EB)


def _shift_xor(state: Tensor, bits: int) -> Tensor:
    # torch shifts int64 arithmetically; the mask makes it the logical shift of the hash's definition.
    return state ^ ((state >> bits) & ((1 << (64 - bits)) - 1))


def uniforms(addresses: Tensor, counters: Tensor) -> Tensor:
    """Return a number in (0, 1) for each address and counter: SplitMix64 on integers, equal on every device.

    The 23 bits plus 1/2 are exact in float32.
    """
    state = addresses + (counters + 1) * GOLDEN
    state = _shift_xor(state, 30) * MIX_1
    state = _shift_xor(state, 27) * MIX_2
    state = _shift_xor(state, 31)
    return (((state >> 41) & ((1 << 23) - 1)).to(torch.float32) + 0.5) / (1 << 23)


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Sampling settings of B rows as tensors; of size 1 where all rows share them."""

    temperatures: Tensor  # [B], 1 for greedy rows
    greedy: Tensor | None  # [B] bool; None: no row is greedy
    top_p: Tensor | None  # [B]; None: no row truncates
    top_k: Tensor | None

    @classmethod
    def of(cls, settings: Sequence[Sampling]) -> "SamplingTensors":
        if all(setting is settings[0] for setting in settings):
            settings = settings[:1]
        temperatures = [setting.temperature for setting in settings]
        truncates = any(setting.top_p < 1 or setting.top_k > 0 for setting in settings)
        return cls(
            torch.tensor([temperature or 1.0 for temperature in temperatures]),
            torch.tensor([temperature == 0 for temperature in temperatures]) if 0 in temperatures else None,
            torch.tensor([setting.top_p for setting in settings]) if truncates else None,
            torch.tensor([setting.top_k for setting in settings]) if truncates else None,
        )


@dataclass(slots=True)
class SamplingBatch:
    """Tokens to sample: the row of the logits, the address of the random number and the settings of each."""

    rows: "array[int]" = field(default_factory=lambda: array("q"))
    addresses: "array[int]" = field(default_factory=lambda: array("Q"))
    counters: "array[int]" = field(default_factory=lambda: array("Q"))
    settings: list[Sampling] = field(default_factory=list)

    def add(self, *, row: int, address: int, counter: int, setting: Sampling, count: int) -> None:
        """Add `count` tokens with consecutive rows and counters."""
        self.rows.extend(range(row, row + count))
        self.addresses.extend([address] * count)
        self.counters.extend(range(counter, counter + count))
        self.settings.extend([setting] * count)


class SamplingArguments(ctypes.Structure):
    """`Draws` in sampling.c."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("stride", "vocabulary")),
        *((name, ctypes.c_void_p) for name in ("rows", "addresses", "counters", "temperatures", "tokens", "logprobs")),
    )


def sample_batch(logits: Tensor, batch: SamplingBatch) -> list[tuple[int, float]]:
    """Return token and log-probability of each entry. logits: [B, V]"""
    library = optional_kernels()
    truncates = any(setting.top_p < 1 or setting.top_k > 0 for setting in batch.settings)
    if library is not None and logits.device.type == "cpu" and not truncates:
        return _sample_compiled(library, logits.float().contiguous(), batch)
    rows, addresses, counters = (
        torch.tensor(column.tolist()) for column in (batch.rows, batch.addresses, batch.counters)
    )
    tokens, logprobs = sample(
        logits.index_select(0, rows), SamplingTensors.of(batch.settings), uniforms(addresses, counters)
    )
    return list(zip(tokens.tolist(), logprobs.tolist(), strict=True))


def _sample_compiled(library: ctypes.CDLL, logits: Tensor, batch: SamplingBatch) -> list[tuple[int, float]]:
    count = len(batch.rows)
    temperatures = array("f", [setting.temperature for setting in batch.settings])
    tokens, logprobs = array("q", bytes(8 * count)), array("f", bytes(4 * count))
    columns = (batch.rows, batch.addresses, batch.counters, temperatures, tokens, logprobs)
    pointers = [column.buffer_info()[0] for column in columns]
    arguments = SamplingArguments(logits.data_ptr(), logits.stride(0), logits.shape[1], *pointers)
    call_kernel(library.draw, arguments, ctypes.c_int64(count))
    return list(zip(tokens, logprobs, strict=True))


def sample(logits: Tensor, rows: SamplingTensors, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return a token and its log-probability (before top-p and top-k) for each row. logits: [B, V]"""
    logprobs = (logits.float() / rows.temperatures[:, None]).log_softmax(dim=-1)
    probabilities = logprobs.exp()
    if rows.top_p is not None and rows.top_k is not None:
        probabilities = truncate(probabilities, rows.top_p, rows.top_k)
    cumulative = probabilities.cumsum(dim=-1)
    total = cumulative[:, -1]
    # Below the total even after rounding, so that the token has a probability above 0.
    threshold = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0]
    if rows.greedy is not None:
        tokens = torch.where(rows.greedy, logprobs.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def truncate(probabilities: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Zero probabilities outside the top k (0: all) and outside the smallest set with mass top_p."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(probabilities.shape[-1], device=probabilities.device)
    before = ordered.cumsum(dim=-1) - ordered
    keep = before < top_p[:, None]
    keep &= (ranks < top_k[:, None]) | (top_k[:, None] == 0)
    keep[:, 0] = True
    return torch.zeros_like(probabilities).scatter_(1, order, ordered * keep)


MAX_DRAFT_TOKENS = 3
"""Rows are padded to the longest, so every row pays for a long draft."""
PASS_OVERHEAD = 75e6
"""Fixed cost of a pass, as the number of parameters of a model for which one more token would cost as much."""
WEIGHT_READ_TOKENS = 13
"""Cost of reading the weights once, in tokens. Both were measured on CPU cores."""

Bigram = tuple[int, int]
"""The last two tokens of a session."""
NO_BIGRAM: Bigram = (-1, -1)


@dataclass(slots=True)
class NextTokenCounts:
    """Counts of the tokens that followed a bigram."""

    total: int = 0
    best: int = -1
    counts: dict[int, int] = field(default_factory=dict)

    def add(self, token: int) -> None:
        self.total += 1
        self.counts[token] = count = self.counts.get(token, 0) + 1
        if count > self.counts.get(self.best, 0):
            self.best = token

    @property
    def probability(self) -> float:
        """Estimated probability of the most frequent token; below 1 even if no other token was counted."""
        return self.counts[self.best] / (self.total + 1)


def min_draft_probability(sessions: int, parameters: int) -> float:
    """Return the probability from which on a draft token saves more than it costs.

    A pass costs about as much as `fixed` tokens, plus one per session, so a token sampled without a draft costs
    1 + fixed / sessions. A draft token costs 1 and yields a token with its probability of being right.
    """
    fixed = PASS_OVERHEAD / parameters + WEIGHT_READ_TOKENS
    return 1 / (1 + fixed / sessions)


class NgramDrafter:
    def __init__(self, stop_ids: Collection[int]) -> None:
        self._stop_ids = stop_ids
        self._counts: dict[Bigram, NextTokenCounts] = {}

    def observe(self, bigram: Bigram, token: int) -> None:
        counts = self._counts.get(bigram)
        if counts is None:
            counts = self._counts[bigram] = NextTokenCounts()
        counts.add(token)

    def draft(self, bigram: Bigram, *, max_tokens: int, min_probability: float) -> list[int]:
        """Return tokens to try after the bigram, while the draft is right with at least this probability."""
        tokens: list[int] = []
        probability = 1.0
        while len(tokens) < max_tokens and (counts := self._counts.get(bigram)) is not None:
            probability *= counts.probability
            if probability < min_probability:
                break
            tokens.append(counts.best)
            if counts.best in self._stop_ids:
                break
            bigram = (bigram[1], counts.best)
        return tokens

    def reset(self) -> None:
        self._counts.clear()
