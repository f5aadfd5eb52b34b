"""The engine's C kernels against torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.protocols import Sampling
from turnwise.engine.cpu import kernels
from turnwise.engine.cpu.attention import KVCache, QueryRow, SlotPlan, torch_attention
from turnwise.engine.cpu.sampling import SamplingBatch, SamplingTensors, sample, sample_batch, uniforms
from turnwise.models.attention.interface import AttentionCall
from turnwise.run.doctor import check_machine

SLOTS = 6


@pytest.fixture(scope="module", autouse=True)
def must_compile(optional_part: Callable[[str], NoReturn]) -> None:
    try:
        kernels.load_kernels()
    except kernels.CompilationError as reason:
        optional_part(f"the engine's kernels cannot be compiled: {reason}")


@st.composite
def passes(draw_from: st.DrawFn) -> dict[str, Any]:
    """A filled cache, and a pass over some of its sessions."""
    shared = draw_from(st.sampled_from([0, 5, 16, 40]))
    slots = draw_from(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=SLOTS, unique=True))
    past = st.integers(shared, 250)
    rows = []
    for slot in sorted(slots):
        new = draw_from(st.integers(1, 12))
        rows.append(QueryRow(slot, draw_from(past), new, draw_from(st.integers(1, new))))
    ahead = [draw_from(st.integers(0, each.new - 1 - at)) for each in rows for at in range(each.new)]
    return {
        "ahead": torch.tensor(ahead) if draw_from(st.booleans()) else None,
        "shared": shared,
        "rows": rows,
        "kv": draw_from(st.sampled_from([1, 2])),
        "group": draw_from(st.integers(1, 5)),
        "size": draw_from(st.sampled_from([16, 48])),
        "window": draw_from(st.sampled_from([None, 1, 7, 33, 1000])),
        "seed": draw_from(st.integers(0, 1000)),
    }


def caches_and_call(about: dict[str, Any]) -> tuple[list[KVCache], AttentionCall]:
    """Two equal caches, and a layer's new queries, keys and values with the strides that transformers passes."""
    random = torch.Generator().manual_seed(about["seed"])
    tokens = sum(each.new for each in about["rows"])
    query, key, value = (
        torch.randn(1, heads, tokens, about["size"], generator=random)[0].transpose(0, 1)
        for heads in (about["kv"] * about["group"], about["kv"], about["kv"])
    )
    call = AttentionCall(layer=0, query=query, key=key, value=value, scale=0.3, softcap=None, window=about["window"])
    caches = []
    for _ in range(2):
        cache = KVCache(SLOTS)
        cache.reserve(300)
        keys, values = cache.layer(call)
        random.manual_seed(1)
        for tensor in (keys, values):
            tensor.copy_(torch.randn(tensor.shape, generator=random))
        first, shared = about["rows"][0].slot, about["shared"]
        cache.copy(first, range(SLOTS), shared)
        caches.append(cache)
    return caches, call


@given(passes())
def test_attention_kernel_matches_torch(about: dict[str, Any]) -> None:
    (ours, twin), call = caches_and_call(about)
    plan = SlotPlan(ours, about["rows"], shared=about["shared"], ahead=about["ahead"])
    expected = torch_attention(twin, about["rows"], call, about["ahead"])
    torch.testing.assert_close(plan.attend(call), expected, atol=2e-5, rtol=1e-4)
    for mine, other in zip(ours.layers[0], twin.layers[0], strict=True):
        assert mine.equal(other)


@given(passes())
def test_attention_kernel_skips_unused_tokens_of_the_last_layer(about: dict[str, Any]) -> None:
    (ours, twin), call = caches_and_call(about)
    options = {"shared": about["shared"], "ahead": about["ahead"]}
    seen = SlotPlan(ours, about["rows"], last=0, **options).attend(call)
    whole = SlotPlan(twin, about["rows"], **options).attend(call)
    start = 0
    for each in about["rows"]:
        end = start + each.new
        read = slice(end - each.read, end)
        torch.testing.assert_close(seen[read], whole[read], atol=2e-5, rtol=1e-4)
        assert not seen[start : end - each.read].any()
        start = end
    assert ours.layers[0][0].equal(twin.layers[0][0])


@given(passes(), st.integers(0, SLOTS))
def test_attention_kernel_is_independent_of_other_sessions(about: dict[str, Any], which: int) -> None:
    about["shared"] = 0
    (ours, twin), call = caches_and_call(about)
    together = SlotPlan(ours, about["rows"], ahead=about["ahead"]).attend(call)
    which %= len(about["rows"])
    start = sum(each.new for each in about["rows"][:which])
    own = slice(start, start + about["rows"][which].new)
    parts = {"query": call.query[own], "key": call.key[own], "value": call.value[own]}
    alone = AttentionCall(layer=0, scale=call.scale, softcap=None, window=call.window, **parts)
    ahead = None if about["ahead"] is None else about["ahead"][own]
    assert SlotPlan(twin, about["rows"][which : which + 1], ahead=ahead).attend(alone).equal(together[own])


def test_attention_kernel_handles_extreme_scores() -> None:
    cache = KVCache(1)
    key = torch.tensor([[0.0], [1000.0], [-1000.0]]).expand(3, 16)[:, None]
    value = torch.arange(3.0)[:, None, None].expand(3, 1, 16).contiguous()
    call = AttentionCall(
        layer=0, query=torch.ones(3, 1, 16), key=key, value=value, scale=1.0, softcap=None, window=None
    )
    out = SlotPlan(cache, [QueryRow(0, 0, 3, 3)]).attend(call)
    assert out[:, 0, 0].tolist() == [0.0, 1.0, 1.0]


def test_kernels_propagate_nan() -> None:
    cache = KVCache(1)
    key = torch.ones(2, 1, 16)
    key[1] = float("nan")
    call = AttentionCall(layer=0, query=torch.ones(2, 1, 16), key=key, value=key, scale=1.0, softcap=None, window=None)
    out = SlotPlan(cache, [QueryRow(0, 0, 2, 2)]).attend(call)
    assert out[1].isnan().all()
    logits = torch.zeros(1, 100)
    logits[0, 70] = float("nan")
    draws = SamplingBatch()
    draws.add(row=0, address=1, counter=0, setting=Sampling(max_tokens=1), count=1)
    ((token, logprob),) = sample_batch(logits, draws)
    assert 0 <= token < 100 and logprob != logprob


@given(
    st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 1600]),
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.7]), min_size=1, max_size=12),
    st.sampled_from([0.0, 1.0, 30.0]),
    st.integers(0, 1000),
)
def test_sampling_kernel_matches_torch(vocabulary: int, temperatures: list[float], spread: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(temperatures), vocabulary, generator=random) * spread
    settings, draws = [Sampling(max_tokens=1, temperature=each) for each in temperatures], SamplingBatch()
    for row, setting in enumerate(settings):
        draws.add(row=row, address=seed * 977, counter=row, setting=setting, count=1)
    numbers = uniforms(torch.full((len(settings),), seed * 977), torch.arange(len(settings)))
    tokens, logprobs = sample(logits, SamplingTensors.of(settings), numbers)
    ours = sample_batch(logits, draws)
    assert [token for token, _ in ours] == tokens.tolist()
    torch.testing.assert_close(torch.tensor([value for _, value in ours]), logprobs, atol=2e-5, rtol=1e-5)


def test_sampling_kernel_follows_the_probabilities() -> None:
    logits, draws = torch.randn(1, 40, generator=torch.Generator().manual_seed(0)) * 2, SamplingBatch()
    count = 20_000
    for number in range(count):
        draws.add(row=0, address=5, counter=number, setting=Sampling(max_tokens=1, temperature=0.7), count=1)
    counts = torch.bincount(torch.tensor([token for token, _ in sample_batch(logits, draws)]), minlength=40)
    expected = (logits[0] / 0.7).softmax(dim=-1) * count
    often = expected > 5
    assert (((counts - expected) ** 2 / expected)[often]).sum() < 2 * int(often.sum())


def test_sampling_batch_adds_consecutive_rows_and_counters() -> None:
    logits, draws, each = torch.randn(5, 30), SamplingBatch(), SamplingBatch()
    draws.add(row=1, address=9, counter=4, setting=Sampling(max_tokens=1), count=3)
    for number in range(3):
        each.add(row=1 + number, address=9, counter=4 + number, setting=Sampling(max_tokens=1), count=1)
    assert sample_batch(logits, draws) == sample_batch(logits, each)


def test_missing_compiler_falls_back_to_torch_and_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("turnwise.run.doctor.sandbox_report", lambda: ["sandbox: none"])  # which takes seconds
    kernels.optional_kernels.cache_clear()
    assert [kernels.optional_kernels() for _ in range(3)] == [None] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "note: no C compiler on the path: episodes on the CPU take longer without compiled kernels; install gcc"
    ]
    (finding,) = [each for each in check_machine(tmp_path) if each.name == "kernels"]
    assert "no C compiler" in finding.found and finding.fix and not finding.required
    kernels.optional_kernels.cache_clear()


def test_broken_compiler_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "gcc"
    fake.write_text("#!/bin/sh\necho 'out of order' >&2\necho more >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    with pytest.raises(kernels.CompilationError, match=r"out of order$"):
        kernels.load_kernels()


@pytest.fixture
def short_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """C files that compile quickly."""
    folder = tmp_path_factory.mktemp("short")
    (folder / "one.c").write_text("int one(void) { return 1; }\n")
    return folder


def test_compile_library_compiles_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short_code: Path) -> None:
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    assert kernels.compile_library("short", short_code).one() == 1
    (library,) = (tmp_path / "compiled").iterdir()
    before = library.stat().st_mtime_ns
    assert kernels.compile_library("short", short_code).one() == 1
    assert [file.stat().st_mtime_ns for file in (tmp_path / "compiled").iterdir()] == [before]


@pytest.mark.parametrize(
    "processors",
    [
        ("flags\t\t: fpu sse2 avx2\ncpu MHz\t\t: 2000\n", "flags\t\t: fpu sse2 avx2 avx512f\n"),
        ("Features\t: fp asimd\nBogoMIPS\t: 243.75\n", "Features\t: fp asimd sve\n"),
        ("Features\t: fp asimd\nCPU part\t: 0xd0c\n", "Features\t: fp asimd\nCPU part\t: 0xd40\n"),
    ],
    ids=["x86", "arm", "arm of another kind"],
)
def test_compile_library_caches_per_cpu(
    processors: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short_code: Path
) -> None:
    """Code for the newer of two CPUs would crash on the other."""
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(kernels, "CPU_INFO", tmp_path / "cpuinfo")
    for text in (*processors, processors[0]):
        kernels.CPU_INFO.write_text(text)
        kernels.compile_library("short", short_code)
    assert len(list((tmp_path / "compiled").iterdir())) == 2
