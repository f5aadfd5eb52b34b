import asyncio
from types import SimpleNamespace

import pytest
import torch

from models_for_tests import FAMILIES, VOCABULARY, random_model
from talks_for_tests import STOP_ID, full_forward_logprobs, key, make_engine, prompt, run_talks, talk, text_of
from turnwise.concurrency.loop_clock import LoopClock, current_clock
from turnwise.core.errors import UserError
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.trajectory import Stop
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.native.requests import Request
from turnwise.models.layers import copy_model


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with the C kernels, if there is a compiler, and without."""
    if request.param == "torch":
        for module in ("attention", "sampling"):
            monkeypatch.setattr(f"turnwise.engine.cpu.{module}.optional_kernels", lambda: None)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("family", FAMILIES)
def test_native_logprobs_match_a_full_forward(family: str) -> None:
    """Three episodes with one long prompt, one with another and one with a short one, of different lengths."""
    shared, other = prompt(1, 21), prompt(2, 30)
    talks = [
        (key(1, 0), [shared, prompt(3, 4), prompt(4, 9)]),
        (key(1, 1), [shared, prompt(5, 1)]),
        (key(1, 2), [shared]),
        (key(2), [shared[:18] + other, prompt(6, 12), prompt(7, 3), prompt(8, 2)]),
        (key(3), [prompt(9, 2), prompt(10, 40)]),
    ]
    engine = make_engine(family)
    sampling = Sampling(max_tokens=7, temperature=0.8)
    for (_, contexts), said in zip(talks, run_talks(engine, talks, sampling), strict=True):
        ours = torch.tensor([value for completion in said for value in completion.logprobs])
        torch.testing.assert_close(ours, full_forward_logprobs(family, contexts, said, 0.8), atol=2e-4, rtol=1e-3)
    assert engine.stats().counts["shared_tokens"] > 0


def test_native_mixes_few_short_with_many_long_contexts() -> None:
    """The short ones are in the last slots."""
    talks = [(key(seed), [prompt(seed, 9), prompt(50 + seed, 12 if seed < 6 else seed - 4)]) for seed in range(8)]
    sampling = Sampling(max_tokens=1)
    for (_, contexts), said in zip(talks, run_talks(make_engine(), talks, sampling), strict=True):
        ours = torch.tensor([value for completion in said for value in completion.logprobs])
        torch.testing.assert_close(ours, full_forward_logprobs("llama", contexts, said, 1.0), atol=2e-4, rtol=1e-3)


def test_native_cache_grows_without_losing_contexts() -> None:
    contexts = [prompt(1, 200), prompt(2, 30)]
    (said,) = run_talks(make_engine(), [(key(1), contexts)], Sampling(max_tokens=20))
    ours = torch.tensor([value for completion in said for value in completion.logprobs])
    torch.testing.assert_close(ours, full_forward_logprobs("llama", contexts, said, 1.0), atol=2e-4, rtol=1e-3)


def test_native_cache_that_does_not_fit_is_refused_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    talks = [(key(1), [prompt(1, 200), prompt(2, 100)])]
    engine = make_engine(slots=100)
    run_talks(engine, talks, Sampling(max_tokens=2))
    held = sum(each.nbytes for layer in engine._runner._cache.layers.values() for each in layer)  # type: ignore[attr-defined]

    def run_with(*free: int | None) -> None:
        """`free`: memory that is available for the first turn, and when the cache grows."""
        monkeypatch.setattr("turnwise.engine.cpu.attention.available_memory", iter(free).__next__)
        run_talks(make_engine(slots=100), talks, Sampling(max_tokens=2))

    run_with(None, None)
    run_with(held // 2, held // 2)
    expected = r"100 episodes with up to {} tokens .* Set rollout\.in_flight to {} or less"
    with pytest.raises(UserError, match=expected.format(256, 50)):
        run_with(held // 4)
    with pytest.raises(UserError, match=expected.format(512, 75)):
        run_with(held // 2, held // 4)


def test_native_episode_is_independent_of_the_batch() -> None:
    sampling = Sampling(max_tokens=12)
    talks = [(key(seed), [prompt(seed, 5 + 3 * seed), prompt(seed + 50, 4)]) for seed in range(8)]
    together = run_talks(make_engine(slots=8), talks, sampling)
    few_slots = run_talks(make_engine(slots=2), talks, sampling)
    for number, (episode, contexts) in enumerate(talks):
        (alone,) = run_talks(make_engine(slots=1), [(episode, contexts)], sampling)
        for others in (together[number], few_slots[number]):
            assert [completion.ids for completion in others] == [completion.ids for completion in alone]


def test_native_members_and_attempts_sample_differently() -> None:
    sampling = Sampling(max_tokens=20)
    first, second = run_talks(make_engine(), [(key(1, n), [prompt(1, 9)]) for n in (0, 1)], sampling)
    assert first[0].ids != second[0].ids


def test_native_later_turns_are_sampled_not_greedy() -> None:
    talks = [(key(1, member), [prompt(1, 9), prompt(2, 5)]) for member in range(6)]
    seconds = {said[1].ids for said in run_talks(make_engine(), talks, Sampling(max_tokens=20))}
    assert len(seconds) > 3


def test_native_equal_runs_give_equal_bits() -> None:
    talks = [(key(seed), [prompt(seed, 5 + 3 * seed), prompt(seed + 50, 4)]) for seed in range(8)]
    first, second = (run_talks(make_engine(slots=3), talks, Sampling(max_tokens=12)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("paged", [False, True])
def test_engine_assigns_slots_equally_in_every_round(paged: bool) -> None:
    """The order in which earlier sessions ended must not matter: a resumed run does not have them."""
    runner = make_engine(slots=4, paged=paged)._runner
    for order in ([0, 1, 2], [1, 2, 0], [2, 0, 1]):
        slots = [runner.claim(address) for address in range(3)]
        assert [slot.index for slot in slots] == [0, 1, 2]
        for number in order:
            runner.release(slots[number])


def test_native_greedy_logprobs_are_at_temperature_one() -> None:
    contexts = [prompt(1, 9)]
    (said,) = run_talks(make_engine(), [(key(1), contexts)], Sampling(max_tokens=6, temperature=0.0))
    torch.testing.assert_close(
        torch.tensor(said[0].logprobs), full_forward_logprobs("llama", contexts, said, 1.0), atol=2e-4, rtol=1e-3
    )
    (again,) = run_talks(make_engine(), [(key(2), contexts)], Sampling(max_tokens=6, temperature=0.0))
    assert again[0].ids == said[0].ids


def test_native_turn_stops_at_token_string_or_length() -> None:
    talks = [(key(seed), [prompt(1, 9)]) for seed in range(40)]
    plain = [said[0] for said in run_talks(make_engine(slots=40), talks, Sampling(max_tokens=50))]
    assert {completion.stop for completion in plain} == {Stop.EOS, Stop.LENGTH}
    for completion in plain:
        assert STOP_ID not in completion.ids[:-1]
        assert (completion.stop is Stop.EOS) == (completion.ids[-1] == STOP_ID)
        assert completion.stop is Stop.EOS or len(completion.ids) == 50
    pair = text_of(list(plain[0].ids[3:5]))
    stopped = run_talks(make_engine(), [(key(0), [prompt(1, 9)])], Sampling(max_tokens=50, stop=("never", pair)))[0][0]
    assert stopped.stop is Stop.STRING
    assert stopped.ids == plain[0].ids[: len(stopped.ids)], "stopping must not change what was sampled"
    assert text_of(list(stopped.ids)).endswith(pair)


def test_native_restart_keeps_the_random_counter() -> None:
    async def scenario() -> tuple[Completion, Completion]:
        engine = make_engine()
        async with engine.open(key(1)) as session:
            first = await session.generate(prompt(1, 9), Sampling(max_tokens=15))
            return first, await session.generate(prompt(1, 9), Sampling(max_tokens=15), restart=True)

    first, second = asyncio.run(scenario())
    assert first.ids != second.ids
    expected = full_forward_logprobs("llama", [prompt(1, 9)], [second], 1.0)
    torch.testing.assert_close(torch.tensor(second.logprobs), expected, atol=2e-4, rtol=1e-3)


def test_native_cancelled_session_frees_its_slot() -> None:
    async def scenario() -> list[Completion]:
        engine = make_engine(slots=2)
        sampling = Sampling(max_tokens=200)
        doomed = asyncio.create_task(talk(engine, key(9), [prompt(9, 5)], sampling))
        others = [asyncio.create_task(talk(engine, key(n), [prompt(1, 9)], Sampling(max_tokens=9))) for n in (1, 2)]
        await asyncio.sleep(0.05)
        doomed.cancel()
        return [said[0] for said in await asyncio.wait_for(asyncio.gather(*others), timeout=120)]

    undisturbed = run_talks(make_engine(), [(key(n), [prompt(1, 9)]) for n in (1, 2)], Sampling(max_tokens=9))
    assert [said.ids for said in asyncio.run(scenario())] == [said[0].ids for said in undisturbed]


def test_native_failing_pass_fails_all_waiting_requests() -> None:
    engine = make_engine()
    with pytest.raises(IndexError):
        run_talks(engine, [(key(1), [[VOCABULARY + 5]])], Sampling(max_tokens=3))


def test_native_serves_consecutive_event_loops() -> None:
    talks = [(key(seed), [prompt(seed, 9), prompt(seed + 50, 4)]) for seed in range(5)]
    sampling, engine = Sampling(max_tokens=4), make_engine(slots=2)
    first, second = (run_talks(engine, talks, sampling) for _ in range(2))  # each in a loop of its own
    assert [[each.ids for each in said] for said in first] == [[each.ids for each in said] for said in second]


def test_native_forgets_requests_of_a_stopped_event_loop() -> None:
    """This happens when a notebook's cell is interrupted and the next one continues."""
    engine, sampling, talks = make_engine(), Sampling(max_tokens=4), [(key(2), [prompt(2, 9)])]

    async def stop_before_the_pass() -> None:
        async with engine.open(key(1)) as session:
            asking = asyncio.create_task(session.generate(prompt(1, 9), sampling))
            await asyncio.sleep(0)  # submits the request
            await asyncio.sleep(0)  # starts the engine's task
            (serving,) = asyncio.all_tasks() - {asking, asyncio.current_task()}
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(stop_before_the_pass())
    (found,), (expected,) = run_talks(engine, talks, sampling), run_talks(make_engine(), talks, sampling)
    assert [each.ids for each in found] == [each.ids for each in expected]


def test_native_session_after_a_failed_pass_gets_the_next_error() -> None:
    engine = make_engine()

    async def ask() -> Completion:
        async with engine.open(key(1)) as session:
            with pytest.raises(ZeroDivisionError), pytest.MonkeyPatch.context() as patch:
                patch.setattr(engine._runner, "run_pass", lambda arrived: 1 / 0)
                await session.generate(prompt(1, 9), Sampling(max_tokens=4))
            return await session.generate(prompt(2, 3), Sampling(max_tokens=4), restart=True)

    assert len(asyncio.run(asyncio.wait_for(ask(), 120)).ids) == 4


def count_asking(engine: NativeEngine) -> list[int]:
    """Sessions included in each pass, filled as passes run."""
    found: list[int] = []
    run_pass = engine._runner.run_pass

    def counted(arrived: list[Request]) -> list[Request]:
        found.append(len(engine._answers))
        return run_pass(arrived)

    engine._runner.run_pass = counted  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("paged", [False, True])
def test_engine_batches_every_session_that_never_suspends(paged: bool) -> None:
    """Equal runs batch equally: answered sessions submit again before the next pass, whatever their order."""
    engine = make_engine(slots=4, paged=paged)
    asking = count_asking(engine)
    talks = [(key(seed), [prompt(seed, 5)] * turns) for seed, turns in enumerate((3, 3, 2, 4))]
    run_talks(engine, talks, Sampling(max_tokens=1))
    assert asking == [4, 4, 3, 1]


@pytest.mark.parametrize("paged", [False, True])
def test_engine_does_not_wait_for_a_suspended_session(paged: bool) -> None:
    """One session waits for an event that is set only after all turns of the other."""

    async def scenario() -> None:
        engine = make_engine(paged=paged)
        others_are_through = asyncio.Event()

        async def waits() -> None:
            async with engine.open(key(1)) as session:
                await session.generate(prompt(1, 5), Sampling(max_tokens=2))
                await others_are_through.wait()
                await session.generate(prompt(2, 5), Sampling(max_tokens=2))

        async def goes_on() -> None:
            await talk(engine, key(2), [prompt(n, 3) for n in range(4)], Sampling(max_tokens=4))
            others_are_through.set()

        async with asyncio.timeout(60):
            await asyncio.gather(waits(), goes_on())

    asyncio.run(scenario())


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Fake clock of the engine, advanced by the test only."""
    found = [0.0]
    monkeypatch.setattr("turnwise.engine.native.engine.time", SimpleNamespace(perf_counter=lambda: found[0]))
    return found


def take_a_second_per_pass(engine: NativeEngine, now: list[float]) -> None:
    run_pass = engine._runner.run_pass

    def slow(arrived: list[Request]) -> list[Request]:
        now[0] += 1
        return run_pass(arrived)

    engine._runner.run_pass = slow  # type: ignore[method-assign]


def test_session_counts_only_passes_that_it_takes_part_in(now: list[float]) -> None:
    """An hour passes between turns, as when an environment blocks."""
    engine = make_engine(slots=2)
    take_a_second_per_pass(engine, now)

    async def spend(seed: int, turns: int) -> float:
        async with engine.open(key(seed)) as session:
            for _ in range(turns):
                await session.generate(prompt(seed, 5), Sampling(max_tokens=1))
                now[0] += 3600
            return session.sampling_s

    async def scenario() -> list[float]:
        return await asyncio.gather(spend(1, 2), spend(2, 5))

    assert asyncio.run(scenario()) == [2.0, 5.0]


def test_engine_passes_pause_the_clocks_of_waiting_episodes(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """The case of a tool that answers while a pass runs."""
    monkeypatch.setattr("turnwise.concurrency.loop_clock.time", SimpleNamespace(monotonic=lambda: now[0]))
    engine = make_engine()
    take_a_second_per_pass(engine, now)

    async def scenario() -> float:
        clock = LoopClock()
        current_clock.set(clock)  # the engine's task inherits this context, but its passes belong to no episode
        began = clock.now()
        await talk(engine, key(1), [prompt(1, 5)], Sampling(max_tokens=4))
        return clock.now() - began

    assert asyncio.run(scenario()) == 0 and now[0] > 0


def test_session_that_waits_for_pages_spends_no_time_on_it(now: list[float]) -> None:
    """There is memory for one of two sessions: the second does not count the passes of the first."""
    engine = make_engine(slots=2, paged=True, pages=4, steps=1)
    take_a_second_per_pass(engine, now)

    async def spend(seed: int) -> float:
        async with engine.open(key(seed)) as session:
            await session.generate(prompt(seed, 100), Sampling(max_tokens=9))
            return session.sampling_s

    async def scenario() -> list[float]:
        return await asyncio.gather(spend(1), spend(2))

    first, second = asyncio.run(scenario())
    assert first > 1 and second > 1 and first + second == now[0]


def test_native_shares_a_prompt_that_fills_the_cache() -> None:
    talks = [(key(1, member), [prompt(1, 256)]) for member in range(3)]
    for (_, contexts), said in zip(talks, run_talks(make_engine(), talks, Sampling(max_tokens=2)), strict=True):
        ours = torch.tensor([value for completion in said for value in completion.logprobs])
        torch.testing.assert_close(ours, full_forward_logprobs("llama", contexts, said, 1.0), atol=2e-4, rtol=1e-3)


@pytest.mark.usefixtures("way")
def test_native_values_are_those_of_the_positions_before_tokens() -> None:
    """Slots that share a prompt, several turns, and drafted tokens."""
    shared = prompt(1, 21)
    talks = [
        (key(1, 0), [shared, prompt(3, 4), prompt(4, 9)]),
        (key(1, 1), [shared, prompt(5, 1)]),
        (key(2), [prompt(9, 2), prompt(10, 40)]),
    ]
    engine, direction = make_engine(), torch.linspace(-1.0, 1.0, 64)
    engine.set_value_head(lambda hidden: hidden @ direction)
    trunk = random_model("llama", "eager").base_model
    for (_, contexts), said in zip(
        talks, run_talks(engine, talks, Sampling(max_tokens=7, temperature=0.1)), strict=True
    ):
        ids, sampled = list[int](), list[int]()
        for context, completion in zip(contexts, said, strict=True):
            ids += context
            sampled += range(len(ids), len(ids) + len(completion.ids))
            ids += completion.ids
        with torch.no_grad():
            hidden = trunk(torch.tensor([ids])).last_hidden_state[0, torch.tensor(sampled) - 1]
        values = torch.tensor([value for completion in said for value in completion.values])
        torch.testing.assert_close(values, hidden @ direction, atol=2e-4, rtol=1e-3)


def test_native_has_no_values_without_a_value_head() -> None:
    (said,) = run_talks(make_engine(), [(key(1), [prompt(1, 9)])], Sampling(max_tokens=5))
    assert said[0].ids and said[0].values == ()


@pytest.mark.parametrize("paged", [False, True])
def test_engine_publishes_weights_while_sessions_are_open(paged: bool) -> None:
    """Tokens sampled before are those of the old weights, later ones of the new, and each carries its version."""
    sampling, first, second = Sampling(max_tokens=40), prompt(1, 70), prompt(2, 5)
    (undisturbed,) = run_talks(make_engine(paged=paged), [(key(1), [first, second])], sampling)

    async def scenario() -> list[Completion]:
        engine = make_engine(paged=paged)
        weights = copy_model(engine._model)
        with torch.no_grad():
            for parameter in weights.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
        async with engine.open(key(1)) as session:
            turn = asyncio.create_task(session.generate(first, sampling))
            for _ in range(6):
                await asyncio.sleep(0)
            assert not turn.done()
            await engine.publish(1, weights)
            return [await turn, await session.generate(second, sampling)]

    one, two = asyncio.run(scenario())
    old = one.policy_versions.count(0)
    assert 0 < old < len(one.ids) and one.policy_versions == (0,) * old + (1,) * (len(one.ids) - old)
    assert one.ids[:old] == undisturbed[0].ids[:old] and one.logprobs[:old] == undisturbed[0].logprobs[:old]
    assert one.logprobs[old] != undisturbed[0].logprobs[old]
    assert set(two.policy_versions) == {1}


def test_paged_sessions_share_no_prefix_of_older_weights() -> None:
    async def scenario() -> list[int]:
        engine, shared = make_engine(paged=True), []
        weights = copy_model(engine._model)
        async with engine.open(key(1)) as first:
            await first.generate(prompt(1, 150), Sampling(max_tokens=2))
            for version in (0, 1):
                if version:
                    await engine.publish(version, weights)
                await talk(engine, key(2 + version), [prompt(1, 150)], Sampling(max_tokens=2))
                shared.append(engine.stats().counts["shared_tokens"])
        return shared

    before, after = asyncio.run(scenario())
    assert before > 0 and after == before
