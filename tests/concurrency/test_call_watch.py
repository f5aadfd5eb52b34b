"""Calls that do not return are logged at growing intervals."""

import asyncio
import logging
import threading
import time

import pytest

from turnwise.concurrency import call_watch
from turnwise.concurrency.blocking import allow_interrupts
from turnwise.concurrency.call_watch import CallWatch
from turnwise.core.errors import InfrastructureFailure
from turnwise.rollout import clock
from turnwise.rollout.clock import EpisodeClock


class Clock:
    """In place of the module `time` of a watch: its thread sleeps forever."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        threading.Event().wait()


@pytest.fixture
def time_of(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock_of_test = Clock()
    monkeypatch.setattr(call_watch, "time", clock_of_test)
    return clock_of_test


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.endswith("call_watch")]


def test_call_that_never_returns_is_overdue_at_growing_intervals(time_of: Clock) -> None:
    watch = CallWatch(first_s=30.0)
    watch.begin("Guess", "rollout.timeout_s 600 ends it")
    lines = {now: watch.overdue(float(now)) for now in range(300)}
    assert [now for now, overdue in lines.items() if overdue] == [30, 60, 120, 240]
    assert lines[60] == [
        "waiting for Guess: 1 running call, and none has returned for 60 s; rollout.timeout_s 600 ends it"
    ]
    watch.begin("Guess", "it")
    assert watch.overdue(1000.0) == ["waiting for Guess: 2 running calls, and none has returned for 1,000 s; it"]


def test_slow_call_among_quick_ones_is_not_overdue(time_of: Clock) -> None:
    watch = CallWatch(first_s=30.0)
    watch.begin("Slow", "")
    for _ in range(20):
        watch.begin("Slow", "")
        time_of.now += 20.0
        assert watch.overdue(time_of.now) == []
        watch.end("Slow", timed_out=False)
    watch.end("Slow", timed_out=False)
    time_of.now += 100.0
    assert watch.overdue(time_of.now) == []  # nothing runs
    watch.begin("Slow", "")
    assert watch.overdue(time_of.now + 29.0) == []
    assert watch.overdue(time_of.now + 30.0) != []


def test_calls_that_time_out_one_after_another_are_one_wait(time_of: Clock) -> None:
    watch = CallWatch(first_s=30.0)
    for _ in range(4):
        watch.begin("Guess", "")
        time_of.now += 10.0
        watch.end("Guess", timed_out=True)
    watch.begin("Guess", "it")
    assert watch.overdue(time_of.now) == ["waiting for Guess: 1 running call, and none has returned for 40 s; it"]


def test_environment_that_blocks_the_event_loop_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Session:
        sampling_s = 0.0

    async def step() -> None:
        while True:
            time.sleep(0.01)

    async def scenario() -> None:
        with allow_interrupts():
            episode = EpisodeClock(Session(), 1.0, watched="Guess")
            async with episode.limit():
                await episode.run_outside(step(), "the environment Guess")

    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(clock, "watch", CallWatch(first_s=0.1, poll_s=0.01))
    with pytest.raises(InfrastructureFailure, match="ran for 1 s without a pause"):
        asyncio.run(scenario())
    assert "rollout.timeout_s 1 ends an episode that takes longer" in lines_of(caplog)[0]
    with clock.watch._lock:
        calls = clock.watch._calls["Guess"]
        assert calls.running == 0 and calls.waiting_since is not None
