"""The Triton kernels against the torch reference, on a GPU or under Triton's interpreter."""

import copy
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NoReturn

import pytest
import torch

from turnwise.engine.paged import reference
from turnwise.engine.paged.state import SampledTokens, SessionState
from turnwise.models.attention.interface import AttentionCall
from turnwise.models.memory.plan import PAGE

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STRETCHES = [(0, 100, 37), (1, 0, 5), (2, 64, 1), (2, 65, 20)]
"""(slot, past positions, new tokens): within a page, at its start, across its end."""


@pytest.fixture
def kernels(optional_part: Callable[[str], NoReturn]) -> Any:
    if find_spec("triton") is None:
        optional_part("triton is not installed, which comes for Linux only")
    from turnwise.engine.paged import kernels

    return kernels


def scene(heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> tuple[SessionState, list[torch.Tensor], Any]:
    chance = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=chance).to(DEVICE, dtype)

    sessions = SessionState.empty(3, 4, DEVICE)
    sessions.tables[:3] = (torch.randperm(15, generator=chance)[:12].view(3, 4) + 1).int()
    tokens = sum(new for *_, new in STRETCHES)
    pages = [normal(16, kv_heads, PAGE, size) for _ in range(2)]
    return sessions, pages, (normal(tokens, heads, size), *(normal(tokens, kv_heads, size) for _ in range(2)))


def blocks_of(tokens: int) -> torch.Tensor:
    """Blocks, one of them padding."""
    blocks, start = [(0, 3, 0, 0)], 0
    for slot, past, new in STRETCHES:
        blocks += [(start + at, slot, past + at, min(tokens, new - at)) for at in range(0, new, tokens)]
        start += new
    return torch.tensor(blocks, dtype=torch.int32).T.contiguous().to(DEVICE)


def tokens_ahead() -> torch.Tensor:
    """Return how many later tokens each one attends to: in every stretch but that of one token, those up to its end."""
    counts = torch.tensor([new for *_, new in STRETCHES])
    return (counts.cumsum(0).repeat_interleave(counts) - 1 - torch.arange(int(counts.sum()))).to(DEVICE)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "window", "softcap", "whole"),
    [
        (6, 2, 64, None, None, False),
        (2, 2, 80, 70, None, False),
        (8, 1, 32, None, 20.0, False),
        (4, 2, 16, 3, 5.0, False),
        (4, 2, 16, None, None, True),
        (4, 2, 16, 10, None, True),
    ],
)
def test_write_and_attend_kernels_match_the_reference(
    kernels: Any, heads: int, kv_heads: int, size: int, window: int | None, softcap: float | None, whole: bool
) -> None:
    sessions, pages, (query, key, value) = scene(heads, kv_heads, size, torch.float32)
    expected = [each.clone() for each in pages]
    slots = torch.cat([torch.full((new,), slot) for slot, _, new in STRETCHES]).to(DEVICE)
    positions = torch.cat([torch.arange(past, past + new) for _, past, new in STRETCHES]).to(DEVICE)
    kernels.write(key, value, *pages, sessions.tables, slots, positions)
    reference.write(key, value, *expected, sessions.tables, slots, positions)
    assert all(map(torch.equal, pages, expected))
    call = AttentionCall(layer=0, query=query, key=key, value=value, scale=size**-0.5, softcap=softcap, window=window)
    tokens = max(1, 64 // kernels.padded(heads // kv_heads))
    ahead = tokens_ahead() if whole else None
    ours = kernels.attend(call, *pages, sessions.tables, blocks_of(tokens), torch.zeros_like(query), tokens, ahead)
    theirs = reference.attend(call, *expected, sessions.tables, blocks_of(tokens), torch.zeros_like(query), ahead)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)
    some = blocks_of(1)[:, ::5].contiguous()  # the interpreter takes its time
    one_by_one = kernels.attend(call, *pages, sessions.tables, some, torch.zeros_like(query), 1, ahead)
    asked = some[0][some[3] > 0].long()
    assert len(asked) > 10
    torch.testing.assert_close(one_by_one[asked], theirs[asked], atol=2e-5, rtol=2e-5)


def sample_with(step: Callable[..., None], seed: int) -> tuple[SessionState, SampledTokens]:
    chance = torch.Generator().manual_seed(seed)
    sessions = SessionState.empty(6, 1, DEVICE)
    sessions.left.copy_(torch.tensor([3, 0, 5, 1, 2, 9, 0]))
    sessions.temperatures.copy_(torch.tensor([1, 1, 0.5, 0, 2, 1, 1.0]))
    sessions.addresses.copy_(torch.randint(-(2**62), 2**62, (7,), generator=chance))
    sessions.counters.copy_(torch.randint(0, 99, (7,), generator=chance))
    logits = (torch.randn(6, 300, generator=chance) * 4).to(DEVICE)
    logits[:, 7] += 5.0 * (seed % 2)  # a stop token that is sampled often
    sampled = SampledTokens.empty(4, 6, DEVICE)
    sampled.cursor.fill_(1)
    rows = torch.tensor([5, 0, 1, 2, 3, 6], dtype=torch.int32, device=DEVICE)
    step(logits, rows, sessions, torch.tensor([3, 7], device=DEVICE), sampled)
    return sessions, sampled


@pytest.mark.parametrize("seed", range(12))
def test_sample_kernel_matches_the_reference(kernels: Any, seed: int) -> None:
    sessions, sampled = sample_with(kernels.sample_step, seed)
    expected_sessions, expected = sample_with(reference.sample_step, seed)
    assert torch.equal(sampled.tokens, expected.tokens)
    torch.testing.assert_close(sampled.logprobs, expected.logprobs, atol=1e-5, rtol=1e-5)
    for name in ("last", "lengths", "counters", "left"):
        assert torch.equal(getattr(sessions, name), getattr(expected_sessions, name)), name


def test_sample_kernel_with_a_vocabulary_of_several_blocks(kernels: Any) -> None:
    """All probability is on two distant tokens; the random number decides."""
    count = 24
    sessions = SessionState.empty(count, 1, DEVICE)
    sessions.left.fill_(1)
    sessions.addresses.copy_(torch.arange(count + 1) * 7919)
    logits = torch.full((count, 9000), -30.0, device=DEVICE)
    logits[:, [100, 8500]] = torch.tensor([1.0, 0.0], device=DEVICE)
    rows, stops = torch.arange(count, dtype=torch.int32, device=DEVICE), torch.tensor([-1], device=DEVICE)
    ours, theirs = (SampledTokens.empty(1, count, DEVICE) for _ in range(2))
    kernels.sample_step(logits, rows, copy.deepcopy(sessions), stops, ours)
    reference.sample_step(logits, rows, copy.deepcopy(sessions), stops, theirs)
    assert torch.equal(ours.tokens, theirs.tokens)
    assert 0.55 < int((ours.tokens == 100).sum()) / count < 0.9
