"""A clock that stops while other code blocks the event loop."""

import asyncio

import pytest

from turnwise.concurrency.blocking import interruptible
from turnwise.concurrency.loop_clock import LoopClock, count_blocked, current_clock, pause_current_clock
from turnwise.rollout.failures import creation_boundary
from virtual_time_for_tests import block, follow_virtual_time, run_in_virtual_time


@pytest.fixture(autouse=True)
def _virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    follow_virtual_time(monkeypatch)


async def block_in_stretches(seconds: float) -> None:
    """Five stretches, one of them inside another limit."""

    async def stretch() -> None:
        block(seconds)

    async def stretches() -> None:
        for _ in range(4):
            await asyncio.sleep(0)
            block(seconds)
        await interruptible(stretch(), 60.0, "the inner one")

    await interruptible(stretches(), 60.0, "the outer one")


def test_clock_counts_waits_and_its_own_code_only() -> None:
    async def own(others: asyncio.Task[None]) -> float:
        clock = LoopClock()
        current_clock.set(clock)
        began = clock.now()
        await others
        await asyncio.sleep(8)
        await asyncio.create_task(block_in_stretches(1))
        return clock.now() - began

    async def scenario() -> float:
        return await own(asyncio.create_task(block_in_stretches(100)))

    assert run_in_virtual_time(scenario()) == pytest.approx(8 + 5)


def test_clock_stops_while_an_environment_is_created() -> None:
    async def scenario() -> float:
        clock = LoopClock()
        began = clock.now()
        with creation_boundary():
            block(100)
        return clock.now() - began

    assert run_in_virtual_time(scenario()) == pytest.approx(0)


def test_clock_stops_while_paused() -> None:
    async def scenario() -> list[float]:
        clock = LoopClock()
        current_clock.set(clock)
        began, seen = clock.now(), []
        for seconds in (1, 2):
            await asyncio.sleep(seconds)
            with pause_current_clock(), pause_current_clock():
                await asyncio.sleep(50)
                block(10)
                count_blocked(10)
                seen.append(clock.now() - began)
            seen.append(clock.now() - began)
        return seen

    assert run_in_virtual_time(scenario()) == pytest.approx([1, 1, 3, 3])
