"""Forks of native sessions: they sample what sessions with the same ids sample, without computing them again."""

import asyncio
from pathlib import Path

import pytest
import torch

from models_for_tests import FAMILIES
from talks_for_tests import full_forward_logprobs, key, make_engine, prompt
from turnwise.core.protocols import Completion, Sampling
from turnwise.data.packing import pack
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import load_model
from turnwise.models.memory.plan import PAGE
from turnwise.training.learner import token_logprobs
from vision_models_for_tests import png, write_vision_model
from visual_talks_for_tests import WIDE, engine_of, look, renderer_of, sample_of

CONTEXT, MORE = prompt(1, 2 * PAGE + 20), prompt(2, 5)
SAMPLING, GREEDY = Sampling(max_tokens=7, temperature=0.8), Sampling(max_tokens=7, temperature=0.0)

both = pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])


@both
@pytest.mark.parametrize("family", FAMILIES)
def test_forks_match_a_full_forward(family: str, paged: bool) -> None:
    """Two forks of a context and one of its first tokens, which sample together with the session itself."""

    async def scenario() -> list[list[Completion]]:
        engine = make_engine(family, paged=paged)
        async with engine.open(key(1)) as session:
            first = await session.generate(CONTEXT, SAMPLING)
            async with (
                session.fork(key(2)) as second,
                session.fork(key(3)) as third,
                session.fork(key(4), length=PAGE + 9) as shorter,
            ):
                said = await asyncio.gather(*(each.generate(MORE, SAMPLING) for each in (session, second, third)))
                short = [await shorter.generate([], SAMPLING), await shorter.generate(MORE, SAMPLING)]
        return [*([first, each] for each in said), short]

    *talks, short = asyncio.run(scenario())
    cases = [*((said, [CONTEXT, MORE]) for said in talks), (short, [CONTEXT[: PAGE + 9], MORE])]
    for said, contexts in cases:
        ours = torch.tensor([value for completion in said for value in completion.logprobs])
        torch.testing.assert_close(ours, full_forward_logprobs(family, contexts, said, 0.8), atol=2e-4, rtol=1e-3)
    assert len({said[1].ids for said in talks}) == 3, "forks sample with their own random numbers"


def test_fork_continues_with_the_bits_of_the_session() -> None:
    async def scenario(forks: bool) -> Completion:
        engine = make_engine()  # of its own: what one session sampled changes what is drafted for the next
        async with engine.open(key(1)) as session:
            await session.generate(CONTEXT, GREEDY)
            async with session.fork(key(2)) as fork:
                return await (fork if forks else session).generate(MORE, GREEDY)

    forked, own = (asyncio.run(scenario(forks)) for forks in (True, False))
    assert forked.ids == own.ids and forked.logprobs == own.logprobs


def test_fork_with_part_of_a_shared_prefix_shares_no_more() -> None:
    """Two sessions share the prefix of their contexts, and are read as one; the fork leaves it half-way."""

    async def scenario() -> list[Completion]:
        async with (engine := make_engine()).open(key(1)) as first, engine.open(key(2)) as second:
            before = await asyncio.gather(*(each.generate(CONTEXT, SAMPLING) for each in (first, second)))
            async with first.fork(key(3), length=PAGE) as fork:
                other = prompt(5, 2 * PAGE)
                after = await asyncio.gather(second.generate(MORE, SAMPLING), fork.generate(other, SAMPLING))
        return [before[1], *after]

    before, after, forked = asyncio.run(scenario())
    for said, contexts in (
        ([before, after], [CONTEXT, MORE]),
        ([forked], [CONTEXT[:PAGE] + prompt(5, 2 * PAGE)]),
    ):
        ours = torch.tensor([value for completion in said for value in completion.logprobs])
        torch.testing.assert_close(ours, full_forward_logprobs("llama", contexts, said, 0.8), atol=2e-4, rtol=1e-3)


@both
def test_fork_outlives_its_session(paged: bool) -> None:
    async def scenario() -> tuple[Completion, Completion]:
        engine = make_engine(paged=paged, slots=2)
        async with engine.open(key(1)) as session:
            await session.generate(CONTEXT, SAMPLING)
            forking = session.fork(key(2), length=len(CONTEXT))
            fork = await forking.__aenter__()
        async with engine.open(key(3)) as other:  # in the slot and the pages of the closed session
            await other.generate(prompt(9, len(CONTEXT)), SAMPLING)
        forked = await fork.generate(MORE, SAMPLING)
        await forking.__aexit__(None, None, None)
        async with engine.open(key(2)) as fresh:
            return forked, await fresh.generate([*CONTEXT, *MORE], SAMPLING)

    forked, fresh = asyncio.run(scenario())
    assert forked.ids == fresh.ids


@pytest.mark.parametrize(("paged", "most"), [(False, 8), (True, 8 * PAGE)], ids=["slots", "pages"])
def test_forks_compute_no_shared_tokens_again(paged: bool, most: int) -> None:
    async def scenario() -> int:
        engine = make_engine(paged=paged, slots=9)
        async with engine.open(key(0)) as session:
            await session.generate(CONTEXT, Sampling(max_tokens=1))
            before = engine.stats().counts["context_tokens"]
            for seed in range(1, 9):
                async with session.fork(key(seed), length=len(CONTEXT)) as fork:
                    await fork.generate([], SAMPLING)
            return engine.stats().counts["context_tokens"] - before

    assert asyncio.run(scenario()) <= most


def test_pages_of_forks_are_freed() -> None:
    async def scenario() -> tuple[int, int]:
        engine = make_engine(paged=True)
        table = engine._runner._page_table  # type: ignore[attr-defined]
        free = table.free
        async with engine.open(key(1)) as session:
            await session.generate(CONTEXT, SAMPLING)
            async with session.fork(key(2)) as fork:
                await fork.generate(MORE, SAMPLING)
                used = free - table.free
                assert used == 4, "two pages are shared, and each session has one of its own"
        return free, table.free

    before, after = asyncio.run(scenario())
    assert after == before


@both
def test_fork_of_a_context_with_images(paged: bool, tmp_path: Path) -> None:
    """In a model that places images in a grid, tokens after them have other positions than indices."""
    folder = write_vision_model("qwen2_vl", tmp_path / "model")
    loaded = load_model(str(folder), attn_implementation=ATTENTION)
    renderer = renderer_of(loaded)
    opening = renderer.start([look(WIDE), look(png(64, 64, seed=4))])

    async def scenario() -> tuple[list[int], Completion]:
        async with engine_of(loaded, renderer, paged=paged).open(key(1)) as session:
            first = await session.generate(opening, SAMPLING)
            extension = renderer.extend([look(WIDE)], first.stop)
            async with session.fork(key(2)) as fork:
                said = await fork.generate(extension, Sampling(max_tokens=7))
        return [*opening, *first.ids, *extension], said

    context, said = asyncio.run(scenario())
    with torch.no_grad():
        expected, *_ = token_logprobs(loaded.model, pack([sample_of([*context, *said.ids], len(said.ids))]))
    torch.testing.assert_close(torch.tensor(said.logprobs), expected, atol=2e-4, rtol=1e-3)


def test_fork_needs_an_open_session_between_two_turns() -> None:
    async def closed() -> None:
        async with make_engine().open(key(1)) as session:
            pass
        async with session.fork(key(2)):
            pass

    async def sampling() -> None:
        async with make_engine().open(key(1)) as session:
            turn = asyncio.create_task(session.generate(CONTEXT, Sampling(max_tokens=100)))
            await asyncio.sleep(0)
            try:
                async with session.fork(key(2)):
                    pass
            finally:
                turn.cancel()

    async def alone() -> None:
        async with make_engine(slots=1).open(key(1)) as session, session.fork(key(2)):
            pass

    for scenario, message in (
        (closed, "closed before its fork"),
        (sampling, "fork it between two turns"),
        (alone, "build the engine with 2 slots or more"),
    ):
        with pytest.raises(RuntimeError, match=message):
            asyncio.run(scenario())
