"""Time in which engines have something to generate."""

import asyncio

import pytest

from talks_for_tests import key, make_engine, prompt
from turnwise.core.protocols import EngineStats, Sampling
from turnwise.engine.active_time import ActiveTime
from turnwise.training.step_record import EngineTimer


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


def test_active_time_counts_overlapping_requests_once() -> None:
    clock = Clock()
    active = ActiveTime(clock)
    clock.now_s = 11.0
    with active:
        clock.now_s = 13.0
        with active:
            clock.now_s = 14.0
        assert active.seconds == 3.0
        clock.now_s = 15.0
    clock.now_s = 20.0
    with pytest.raises(asyncio.CancelledError), active:
        clock.now_s = 20.5
        raise asyncio.CancelledError
    assert active.seconds == 4.5


def test_native_engine_is_idle_between_turns() -> None:
    engine = make_engine()

    async def scenario() -> float:
        async with engine.open(key(1)) as session:
            await session.generate(prompt(1, 5), Sampling(max_tokens=3))
            before = engine.stats().active_s
            await asyncio.sleep(0.02)  # a tool
            assert engine.stats().active_s == before
            await session.generate(prompt(2, 5), Sampling(max_tokens=3))
            return before

    first = asyncio.run(scenario())
    stats = engine.stats()
    assert 0 < first < stats.active_s
    assert stats.busy_s <= stats.active_s


def test_engine_timer_records_the_idle_share_since_the_last_step() -> None:
    clock = Clock()
    timer = EngineTimer(clock)
    clock.now_s = 14.0
    assert timer.metrics(EngineStats(busy_s=2.0, active_s=3.0, capture_s=0.5)) == {
        "time/capture_s": 0.5,
        "time/engine_s": 2.0,
        "time/engine_idle_share": 0.25,
    }
    clock.now_s = 16.0
    assert timer.metrics(EngineStats(busy_s=2.0, active_s=3.0))["time/engine_idle_share"] == 1.0
    clock.now_s = 17.0
    assert timer.metrics(EngineStats(busy_s=2.0, active_s=4.5))["time/engine_idle_share"] == 0.0, "a late answer"
    assert "time/engine_idle_share" not in EngineTimer(clock).metrics(EngineStats()), "it is not known"


def test_engine_timer_records_published_megabytes_only_after_a_copy() -> None:
    timer = EngineTimer(Clock())
    totals = (2_500_000, 2_500_000, 4_000_000)
    found = [timer.metrics(EngineStats(published_bytes=each)).get("engine/published_mb") for each in totals]
    assert found == [2.5, None, 1.5]
