"""The paged engine on the CPU, with the torch reference of its kernels."""

import asyncio
import random
from functools import cache

import pytest
import torch

from models_for_tests import FAMILIES
from talks_for_tests import Talks, full_forward_logprobs, key, make_engine, prompt, run_talks, talk, text_of
from turnwise.core.errors import UserError
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.trajectory import Stop
from turnwise.engine.paged.page_table import PagedSlot, PageTable
from turnwise.models.memory.plan import PAGE


def uneven_talks() -> Talks:
    """A group with one prompt, one with an equal prefix, and others, of different lengths."""
    shared, other = prompt(1, 150), prompt(2, 30)
    return [
        (key(1, 0), [shared, prompt(3, 4), prompt(4, 9)]),
        (key(1, 1), [shared, prompt(5, 1)]),
        (key(1, 2), [shared]),
        (key(2), [shared[:130] + other, prompt(6, 12), prompt(7, 3), prompt(8, 2)]),
        (key(3), [prompt(9, 2), prompt(10, 40)]),
    ]


def check_against_full_forward(
    family: str, talks: Talks, said: list[list[Completion]], temperature: float = 1.0
) -> None:
    for (_, contexts), completions in zip(talks, said, strict=True):
        ours = torch.tensor([value for completion in completions for value in completion.logprobs])
        expected = full_forward_logprobs(family, contexts, completions, temperature)
        torch.testing.assert_close(ours, expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_paged_logprobs_match_a_full_forward(family: str) -> None:
    engine = make_engine(family, paged=True)
    said = run_talks(engine, uneven_talks(), Sampling(max_tokens=4, temperature=0.8))
    check_against_full_forward(family, uneven_talks(), said, 0.8)
    assert engine.stats().counts["shared_tokens"] == 3 * 2 * PAGE


@cache
def sampled_in_slots() -> tuple[Talks, Sampling, list[list[Completion]]]:
    talks = [(key(seed), [prompt(seed % 3, 70), prompt(seed + 50, 4), prompt(seed, 9)]) for seed in range(7)]
    sampling = Sampling(max_tokens=13)
    return talks, sampling, run_talks(make_engine(slots=3), talks, sampling)


@pytest.mark.parametrize("steps", [1, pytest.param(3, marks=pytest.mark.soak), 16])
def test_paged_samples_what_the_slot_runner_samples(steps: int) -> None:
    talks, sampling, theirs = sampled_in_slots()
    ours = run_talks(make_engine(slots=3, paged=True, steps=steps), talks, sampling)
    assert [[each.ids for each in said] for said in ours] == [[each.ids for each in said] for said in theirs]
    assert [[each.stop for each in said] for said in ours] == [[each.stop for each in said] for said in theirs]


def test_paged_turns_end_at_stop_strings() -> None:
    """Tokens sampled after the end of a turn are discarded and do not influence later turns."""
    contexts = [prompt(1, 9), prompt(2, 5), prompt(3, 3)]
    (plain,) = run_talks(make_engine(), [(key(1), contexts)], Sampling(max_tokens=20))
    ends = text_of(list(plain[0].ids[2:4]))
    sampling = Sampling(max_tokens=20, stop=("never", ends))
    (ours,) = run_talks(make_engine(paged=True, steps=16), [(key(1), contexts)], sampling)
    (theirs,) = run_talks(make_engine(), [(key(1), contexts)], sampling)
    assert ours[0].stop is Stop.STRING
    assert [each.ids for each in ours] == [each.ids for each in theirs]
    check_against_full_forward("llama", [(key(1), contexts)], [ours])


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 3}])
def test_paged_greedy_and_truncated_sampling_match_slot_runner(settings: dict[str, float]) -> None:
    sampling = Sampling(max_tokens=9, **settings)  # type: ignore[arg-type]
    talks = [(key(seed), [prompt(seed, 9), prompt(seed + 9, 5)]) for seed in range(4)]
    ours, theirs = (run_talks(make_engine(paged=paged), talks, sampling) for paged in (True, False))
    assert [[each.ids for each in said] for said in ours] == [[each.ids for each in said] for said in theirs]


def test_paged_prefills_long_contexts_in_chunks() -> None:
    talks = [(key(seed), [prompt(seed, 150), prompt(seed + 9, 90)]) for seed in range(3)]
    said = run_talks(make_engine(paged=True, prefill_tokens=100), talks, Sampling(max_tokens=5))
    check_against_full_forward("llama", talks, said)


def test_paged_evicts_idle_sessions_and_restores_them() -> None:
    """Nine pages for eight sessions of three pages each."""
    talks = [(key(seed), [prompt(seed, 100), prompt(seed + 9, 30), prompt(seed + 20, 7)]) for seed in range(8)]
    engine = make_engine(paged=True, pages=10)
    said = run_talks(engine, talks, Sampling(max_tokens=4))
    check_against_full_forward("llama", talks, said)
    assert engine.stats().counts["evicted_tokens"] > 0
    roomy = make_engine(paged=True)
    assert [[each.ids for each in one] for one in run_talks(roomy, talks, Sampling(max_tokens=4))] == [
        [each.ids for each in one] for one in said
    ]
    assert roomy.stats().counts["evicted_tokens"] == 0


def test_paged_cache_smaller_than_one_session_is_an_error() -> None:
    with pytest.raises(UserError, match="too small for a single episode"):
        run_talks(make_engine(paged=True, pages=3), [(key(1), [prompt(1, 200)])], Sampling(max_tokens=3))


def test_paged_restart_keeps_the_random_counter() -> None:
    async def scenario(paged: bool) -> list[Completion]:
        async with make_engine(paged=paged).open(key(1)) as session:
            sampling = Sampling(max_tokens=15)
            first = await session.generate(prompt(1, 99), sampling)
            return [first, await session.generate(prompt(1, 80), sampling, restart=True)]

    ours, theirs = asyncio.run(scenario(True)), asyncio.run(scenario(False))
    assert [each.ids for each in ours] == [each.ids for each in theirs]


def test_paged_cancelled_session_frees_its_pages() -> None:
    async def scenario() -> list[Completion]:
        engine = make_engine(slots=2, paged=True, pages=9)
        doomed = asyncio.create_task(talk(engine, key(9), [prompt(9, 5)], Sampling(max_tokens=200)))
        others = [asyncio.create_task(talk(engine, key(n), [prompt(1, 9)], Sampling(max_tokens=9))) for n in (1, 2)]
        await asyncio.sleep(0.05)
        doomed.cancel()
        return [said[0] for said in await asyncio.wait_for(asyncio.gather(*others), timeout=120)]

    undisturbed = run_talks(make_engine(), [(key(n), [prompt(1, 9)]) for n in (1, 2)], Sampling(max_tokens=9))
    assert [said.ids for said in asyncio.run(scenario())] == [said[0].ids for said in undisturbed]


def test_page_table_never_shares_a_writable_page() -> None:
    """In any order of opening, growing and closing, pages are free or owned, and only full pages are shared."""
    chance = random.Random(0)
    table, slots = PageTable(40), list[PagedSlot]()
    for _ in range(1000):
        if slots and chance.random() < 0.4:
            slot = chance.choice(slots)
            table.release(slot, keep=chance.choice([0, 1, 9]))
            if not slot.pages:
                slots.remove(slot)
            continue
        slot = PagedSlot(index=0, address=0, ids=[chance.randrange(2)] * chance.randrange(2, 300))
        shared = table.share_prefix(slot)
        if table.reserve(slot, len(slot.ids) + 5):
            table.register(slot, shared)
            slots.append(slot)
        else:
            table.release(slot)
        owned = {page for each in slots for page in each.pages}
        assert len(owned) + table.free == 39
        assert 0 not in owned
        for each in slots:
            own = [page for page in each.pages if sum(page in other.pages for other in slots) > 1]
            assert own == each.pages[: len(own)], "what is shared comes first"
            assert len(own) * PAGE < len(each.ids)
