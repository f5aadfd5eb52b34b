"""Speed of sandbox sessions and calls, and memory per session.

    .venv/bin/python benchmarks/sandbox.py [--sessions 200] [--calls 2000] [--at-once 16]

start       seconds to a self-tested sandbox with numpy and sympy imported
first call  median milliseconds of a new session and its first call
warm call   median milliseconds of a later call in the same session
sessions/s  sessions with one call each, several concurrently
calls/s     warm calls of several concurrent sessions
memory      proportional set size of a session that has used numpy and sympy
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.table import Table

from turnwise.sandbox.host import Sandbox, SandboxSession, start_unsafe_subprocess
from turnwise.sandbox.processes import proportional_bytes
from turnwise.sandbox.types import SandboxLimits, SandboxUnavailable

MEBIBYTE = 1024 * 1024
USE_LIBRARIES = "import numpy, sympy\nx = sympy.Symbol('x')\nprint(sympy.solve(x**2 - 2), numpy.arange(1000).sum())"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    start_s: float
    first_ms: float
    warm_ms: float
    sessions_per_s: float
    calls_per_s: float
    memory_mb: float


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    begin = time.perf_counter()
    await work()
    return time.perf_counter() - begin


async def one_call(box: Sandbox) -> None:
    async with box.session() as session:
        await session.run("x = 1")


async def medians(box: Sandbox, sessions: int) -> tuple[float, float]:
    """Return the median milliseconds of first and of warm calls, run one after another."""
    first, warm = [], []
    for _ in range(sessions):
        async with box.session() as session:
            first.append(await timed(partial(session.run, "x = 1")))
            for _ in range(5):
                warm.append(await timed(partial(session.run, "x + 1")))
    return 1000 * statistics.median(first), 1000 * statistics.median(warm)


async def session_rate(box: Sandbox, sessions: int, at_once: int) -> float:
    gate = asyncio.Semaphore(at_once)

    async def guarded() -> None:
        async with gate:
            await one_call(box)

    begin = time.perf_counter()
    await asyncio.gather(*(guarded() for _ in range(sessions)))
    return sessions / (time.perf_counter() - begin)


async def call_rate(box: Sandbox, calls: int, at_once: int) -> float:
    async def caller(session: SandboxSession) -> None:
        for _ in range(calls // at_once):
            await session.run("x = 2")

    sessions = [box.session() for _ in range(at_once)]
    await asyncio.gather(*(session.run("x = 1") for session in sessions))
    seconds = await timed(lambda: asyncio.gather(*map(caller, sessions)))
    for session in sessions:
        session.close()
    return calls // at_once * at_once / seconds


async def memory(box: Sandbox, at_once: int) -> float:
    """Return the mean MiB of sessions that run at the same time."""
    sessions = [box.session() for _ in range(at_once)]
    await asyncio.gather(*(session.run(USE_LIBRARIES) for session in sessions))
    pids = [session.pid for session in sessions]
    sizes = [proportional_bytes(pid) or 0 for pid in pids if pid is not None]
    for session in sessions:
        session.close()
    return statistics.mean(sizes) / MEBIBYTE


async def measure(tier: str, sessions: int, calls: int, at_once: int) -> Measurement:
    begin = time.perf_counter()
    limits = SandboxLimits()
    box = await (start_unsafe_subprocess(limits) if tier == "unsafe_subprocess" else Sandbox.start(limits, tier))  # type: ignore[arg-type]
    start_s = time.perf_counter() - begin
    async with box:
        await one_call(box)
        first_ms, warm_ms = await medians(box, sessions // 4)
        return Measurement(
            start_s=start_s,
            first_ms=first_ms,
            warm_ms=warm_ms,
            sessions_per_s=await session_rate(box, sessions, at_once),
            calls_per_s=await call_rate(box, calls, at_once),
            memory_mb=await memory(box, at_once),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=16)
    args = parser.parse_args()
    table = Table("tier", "start s", "first call ms", "warm call ms", "sessions/s", "calls/s", "memory MiB")
    for tier in ("namespaces", "landlock", "unsafe_subprocess"):
        try:
            result = asyncio.run(measure(tier, args.sessions, args.calls, args.at_once))
        except SandboxUnavailable as error:
            table.add_row(tier, str(error))
            continue
        table.add_row(
            tier,
            f"{result.start_s:.2f}",
            f"{result.first_ms:.1f}",
            f"{result.warm_ms:.2f}",
            f"{result.sessions_per_s:.0f}",
            f"{result.calls_per_s:.0f}",
            f"{result.memory_mb:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
