"""Objects of one event loop."""

import asyncio

import pytest

from turnwise.concurrency.per_loop import PerLoop


def test_per_loop_makes_one_object_for_each_event_loop() -> None:
    locks = PerLoop(asyncio.Lock)

    async def get_twice() -> tuple[asyncio.Lock, asyncio.Lock]:
        return locks.get(), locks.get()

    (first, again), (other, _) = asyncio.run(get_twice()), asyncio.run(get_twice())
    assert first is again is not other


def test_per_loop_enters_a_loop_once_its_object_is_made() -> None:
    made: list[int] = []

    def make() -> None:
        made.append(len(made))
        if len(made) == 1:
            raise RuntimeError("a session is open")

    async def scenario() -> None:
        entered = PerLoop(make)
        with pytest.raises(RuntimeError):
            entered.get()
        entered.get()
        entered.get()

    asyncio.run(scenario())
    assert made == [0, 1]
