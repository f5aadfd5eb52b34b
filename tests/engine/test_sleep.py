"""The engine releases its cache between rollouts and allocates it again when needed."""

import asyncio

import pytest

from talks_for_tests import Talks, key, make_engine, prompt, run_talks, talk
from turnwise.core.protocols import Sampling
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.device import Device

SAMPLING = Sampling(max_tokens=9)


def talks() -> Talks:
    return [(key(seed), [prompt(seed % 2, 70), prompt(seed + 50, 4)]) for seed in range(5)]


def device_of(engine: NativeEngine) -> Device:
    return engine._runner._device  # type: ignore[attr-defined]


@pytest.mark.parametrize("paged", [False, True])
def test_sleep_does_not_change_what_is_sampled(paged: bool) -> None:
    engine = make_engine(paged=paged)
    first = run_talks(engine, talks(), SAMPLING)
    asyncio.run(engine.sleep())
    assert run_talks(engine, talks(), SAMPLING) == first
    asyncio.run(engine.sleep())
    asyncio.run(engine.sleep())
    assert run_talks(engine, talks(), SAMPLING) == first


def test_sleep_releases_pages_and_graphs() -> None:
    engine = make_engine(paged=True)
    device = device_of(engine)
    run_talks(engine, talks(), SAMPLING)
    assert device.pages.layers and device.graphs._graphs
    asyncio.run(engine.sleep())
    assert not device.pages.layers and not device.graphs._graphs
    count = device.pages.count
    run_talks(engine, talks(), SAMPLING)
    assert {len(each) for layer in device.pages.layers for each in layer} == {count}


def test_sleep_before_the_first_request() -> None:
    engine = make_engine(paged=True)
    asyncio.run(engine.sleep())
    assert run_talks(engine, talks(), SAMPLING) == run_talks(make_engine(paged=True), talks(), SAMPLING)


@pytest.mark.parametrize("paged", [False, True])
def test_sleep_with_an_open_session_raises(paged: bool) -> None:
    async def scenario() -> None:
        engine = make_engine(paged=paged)
        async with engine.open(key(1)) as session:
            before = await session.generate(prompt(1, 70), SAMPLING)
            with pytest.raises(RuntimeError, match="a session is open"):
                await engine.sleep()
            after = await session.generate(prompt(2, 3), SAMPLING)
        expected = await talk(make_engine(paged=paged), key(1), [prompt(1, 70), prompt(2, 3)], SAMPLING)
        assert [before, after] == expected

    asyncio.run(scenario())


def test_publish_with_an_open_session_raises() -> None:
    async def scenario() -> None:
        engine = make_engine()
        async with engine.open(key(1)):
            with pytest.raises(RuntimeError, match="while a session is open"):
                await engine.publish(1, engine._model)
        await engine.publish(1, engine._model)
        assert engine.policy_version == 1

    asyncio.run(scenario())


def test_sleep_discards_a_pending_pass() -> None:
    """A cancelled session leaves a pending pass."""

    async def scenario() -> NativeEngine:
        engine = make_engine(paged=True, steps=2)
        doomed = asyncio.create_task(talk(engine, key(9), [prompt(9, 5)], Sampling(max_tokens=200)))
        while engine._runner._pending is None:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        doomed.cancel()
        await asyncio.gather(doomed, return_exceptions=True)
        assert engine._runner._pending is not None  # type: ignore[attr-defined]
        await engine.sleep()
        assert engine._runner._pending is None  # type: ignore[attr-defined]
        return engine

    said = run_talks(asyncio.run(scenario()), talks(), SAMPLING)
    assert said == run_talks(make_engine(paged=True), talks(), SAMPLING)


def test_capture_seconds_are_counted() -> None:
    engine = make_engine(paged=True)
    assert engine.stats().capture_s == 0.0
    device_of(engine).graphs.seconds += 1.5
    assert engine.stats().capture_s == 1.5
    assert make_engine().stats().capture_s == 0.0
