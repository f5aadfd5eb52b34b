"""Code that blocks the event loop is interrupted; whatever waits is left to asyncio's time-outs."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType, SimpleNamespace

import pytest

from processes_for_tests import start_process
from turnwise.concurrency import blocking, loop_clock
from turnwise.concurrency.blocking import EventLoopBlocked, allow_interrupts, interruptible
from turnwise.concurrency.loop_clock import LoopClock, current_clock

HANG_S = 60.0


@pytest.fixture(autouse=True)
def _sigalrm_is_given_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def sleep() -> None:
    time.sleep(HANG_S)


def spin() -> None:
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        pass


def swallow() -> None:
    """Goes on after whatever it can catch."""
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        try:
            time.sleep(HANG_S)
        except Exception:
            continue


def swallow_once() -> None:
    try:
        time.sleep(HANG_S)
    except BaseException:
        time.sleep(HANG_S)


async def block(how: Callable[[], None]) -> None:
    await asyncio.sleep(0)
    how()


@pytest.mark.parametrize("how", [sleep, spin, swallow, swallow_once])
def test_interruptible_interrupts_code_that_blocks(how: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "GRACE_S", 0.05)

    async def scenario() -> None:
        with allow_interrupts():
            await interruptible(block(how), 0.05, "the step")

    with pytest.raises(EventLoopBlocked, match=r"the step ran for 0\.05 s without a pause, at test_blocking\.py:\d+"):
        asyncio.run(scenario())


def test_interruptible_leaves_suspended_code_alone() -> None:
    """Others run meanwhile, and for longer than its limit: none of that is its time."""

    async def wait(gate: asyncio.Event) -> str:
        await gate.wait()
        return "back"

    async def scenario() -> str:
        gate = asyncio.Event()
        with allow_interrupts():
            waiting = asyncio.create_task(interruptible(wait(gate), 0.05, "it"))
            await asyncio.sleep(0)
            time.sleep(0.2)  # code of another task
            gate.set()
            return await waiting

    assert asyncio.run(scenario()) == "back"


def test_interruptible_passes_on_results_errors_and_cancellation() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("mine")

    async def linger(seen: list[str]) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def scenario() -> list[str]:
        seen: list[str] = []
        with allow_interrupts():
            with pytest.raises(KeyError, match="mine"):
                await interruptible(fail(), 60.0, "it")
            lingering = asyncio.create_task(interruptible(linger(seen), 60.0, "it"))
            await asyncio.sleep(0)
            lingering.cancel()
            with pytest.raises(asyncio.CancelledError):
                await lingering
        return seen

    assert asyncio.run(scenario()) == ["cancelled"]


def test_nested_limits_interrupt_at_the_nearer_one() -> None:
    async def inner() -> None:
        await interruptible(block(sleep), 30.0, "the inner one")

    async def scenario() -> None:
        with allow_interrupts():
            await interruptible(inner(), 0.05, "the outer one")

    with pytest.raises(EventLoopBlocked, match="the outer one"):
        asyncio.run(scenario())


def test_interruptible_is_plain_where_no_signal_can_be_used() -> None:
    """In another thread, and beside a timer of other code, nothing is interrupted and the timer stays."""

    async def short() -> str:
        time.sleep(0.1)
        return "done"

    async def scenario() -> str:
        with allow_interrupts():
            return await interruptible(short(), 0.01, "it")

    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(scenario())))
    thread.start()
    thread.join()
    signal.setitimer(signal.ITIMER_REAL, 3600.0)
    try:
        found.append(asyncio.run(scenario()))
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 3000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert found == ["done", "done"]


@pytest.mark.parametrize(("limit_s", "grace_s"), [(0.5, 10.0), (600.0, 60.0)])
def test_interrupted_code_has_time_to_clean_up(limit_s: float, grace_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the end of the grace a signal does nothing; after it, the clean-up is interrupted as well."""
    now, seen = [1000.0], []
    monkeypatch.setattr(blocking, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def pass_time(seconds: float) -> None:
        now[0] += seconds
        signal.raise_signal(signal.SIGALRM)

    async def step() -> None:
        try:
            pass_time(limit_s + 0.1)
            seen.append("not interrupted")
        finally:
            pass_time(grace_s - 0.1)
            seen.append("cleaned up")
            pass_time(0.2)
            seen.append("not interrupted again")

    async def scenario() -> None:
        with allow_interrupts():
            await interruptible(step(), limit_s, "the step")

    with pytest.raises(EventLoopBlocked, match="the step"):
        asyncio.run(scenario())
    assert seen == ["cleaned up"]


def test_outer_limit_binds_after_an_inner_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grace is for the inner code's clean-up, and does not put off the deadline of the outer one."""
    monkeypatch.setattr(blocking, "GRACE_S", 5000.0)

    async def outer() -> float:
        with pytest.raises(EventLoopBlocked, match="the inner one"):
            await interruptible(block_at_once(), 0.05, "the inner one")
        return signal.getitimer(signal.ITIMER_REAL)[0]

    async def block_at_once() -> None:
        sleep()

    async def scenario() -> float:
        with allow_interrupts():
            return await interruptible(outer(), 1000.0, "the outer one")

    assert 0 < asyncio.run(scenario()) <= 1000


class UserTimeout(Exception):
    pass


def raise_user_timeout(number: int, frame: FrameType | None) -> None:
    raise UserTimeout


@pytest.fixture
def _sigalrm_is_put_back() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


async def grade(restore: bool) -> None:
    """Use SIGALRM as graders do, with or without giving the handler back."""
    before = signal.signal(signal.SIGALRM, raise_user_timeout)
    signal.alarm(3600)
    signal.alarm(0)
    if restore:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_sigalrm_is_put_back")
@pytest.mark.parametrize("restore", [True, False])
def test_limit_binds_after_user_code_used_sigalrm(restore: bool) -> None:
    async def look() -> tuple[bool, bool]:
        return signal.getsignal(signal.SIGALRM) != raise_user_timeout, signal.getitimer(signal.ITIMER_REAL)[0] > 0

    async def scenario() -> None:
        with allow_interrupts():
            await interruptible(grade(restore), 1000.0, "the grader")
            assert await interruptible(look(), 2000.0, "the look") == (True, True)
            await interruptible(grade(restore), 1000.0, "the grader")
            await interruptible(block(sleep), 0.05, "the step")

    with pytest.raises(EventLoopBlocked, match="the step"):
        asyncio.run(scenario())
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert (signal.getsignal(signal.SIGALRM) == raise_user_timeout) is not restore


@pytest.mark.usefixtures("_sigalrm_is_put_back")
def test_timer_of_user_code_is_left_alone() -> None:
    """Other code runs while the user's timer does, and never with the user's handler at our time."""

    async def wait(gate: asyncio.Event) -> None:
        signal.signal(signal.SIGALRM, raise_user_timeout)
        signal.alarm(3600)
        await gate.wait()

    async def scenario() -> None:
        gate = asyncio.Event()
        with allow_interrupts():
            waiting = asyncio.create_task(interruptible(wait(gate), 1000.0, "it"))
            await asyncio.sleep(0)
            await interruptible(asyncio.sleep(0), 500.0, "the other one")
            gate.set()
            await waiting

    asyncio.run(scenario())
    assert signal.getsignal(signal.SIGALRM) == raise_user_timeout
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 2000


@pytest.mark.usefixtures("_sigalrm_is_put_back")
def test_timer_is_stopped_though_user_code_took_the_handler() -> None:
    async def take() -> None:
        signal.signal(signal.SIGALRM, raise_user_timeout)

    async def scenario() -> None:
        with allow_interrupts():
            await interruptible(take(), 1000.0, "it")

    asyncio.run(scenario())
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


class Pauses:
    """A legal awaitable whose `__await__` returns an iterator that is not a generator."""

    def __await__(self) -> Iterator[None]:  # type: ignore[override]
        return iter([None, None])


def test_interruptible_accepts_any_awaitable() -> None:
    async def scenario() -> None:
        with allow_interrupts():
            await interruptible(Pauses(), 60.0, "it")  # type: ignore[arg-type]
            waiting = asyncio.create_task(interruptible(Pauses(), 60.0, "it"))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(scenario())


def test_interruptible_in_another_thread_counts_blocked_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of an episode stops while another one's code blocks the thread."""
    now = [1000.0]
    clock_source = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(blocking, "time", clock_source)
    monkeypatch.setattr(loop_clock, "time", clock_source)

    async def work(seconds: float) -> None:
        now[0] += seconds

    async def run(seconds: float) -> float:
        current_clock.set(clock := LoopClock())
        await interruptible(interruptible(work(seconds), 60.0, "the inner one"), 60.0, "it")
        await asyncio.sleep(0)
        return clock.now() - 1000.0

    async def both() -> list[float]:
        return await asyncio.gather(run(5.0), run(7.0))

    found: list[list[float]] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(both())))
    thread.start()
    thread.join()
    assert found == [[5.0, 7.0]]


def block_in_thread(seconds: float, limit_s: float) -> None:
    """Exit with 0 unless the process is ended before."""

    async def sleep() -> None:
        time.sleep(seconds)

    def work() -> None:
        blocking.exit_if_blocked()
        asyncio.run(interruptible(sleep(), limit_s, "it"))

    blocking.GRACE_S = 0.0
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize(("seconds", "limit_s", "code"), [(600.0, 0.01, 1), (0.0, 600.0, 0)])
def test_exit_if_blocked_ends_the_process(seconds: float, limit_s: float, code: int) -> None:
    process = start_process(block_in_thread, seconds, limit_s)
    process.join()
    assert process.exitcode == code


@pytest.mark.parametrize("code", [sleep, spin])
def test_ctrl_c_interrupts_blocking_code(code: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "STOP_S", 0.2)
    began = []

    async def block() -> None:
        began.append(code)
        code()

    async def retry() -> None:
        with allow_interrupts():
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            while True:  # as a failed episode is
                with suppress(EventLoopBlocked):
                    await interruptible(block(), HANG_S, "it")

    handler = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(retry())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(began) == 1


def test_code_that_begins_after_ctrl_c_may_block_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "STOP_S", 0.2)
    ended = []

    async def wait() -> None:
        with allow_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            try:
                await asyncio.sleep(HANG_S)
            finally:
                for code in (lambda: time.sleep(0.01), sleep):
                    await interruptible(_call(code), HANG_S, "the clean-up")
                    ended.append(code)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(wait())
    assert len(ended) == 1


def test_task_that_is_left_over_leaves_ctrl_c_to_the_next_loop() -> None:
    """asyncio.run cancels it only after it has looked for its own handler."""

    async def hold() -> None:
        with allow_interrupts():
            await asyncio.Event().wait()

    async def leave() -> None:
        left.append(asyncio.create_task(hold()))
        await asyncio.sleep(0)

    left: list[asyncio.Task[None]] = []
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(leave())
    assert left[0].cancelled() and signal.getsignal(signal.SIGINT) is signal.default_int_handler


async def _call(code: Callable[[], None]) -> None:
    code()
