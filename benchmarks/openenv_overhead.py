"""Time that other interfaces add to a turn: OpenEnv's protocol to a server, and Gymnasium's in this process.

    python benchmarks/openenv_overhead.py --episodes 256 --turns 20

The same replies are sent to the same episodes in one process and over a server in a process of its own on this machine;
the difference per turn is what the protocol adds. All episodes are open at the same time. The processor's time
is that of both processes: on a busy machine it says more than the time on the clock.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import turnwise as tw
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.adapters.openenv.env import OpenEnv, facts_of
from turnwise.envs.registry import load_spec, spec_of
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec

ENV = "frozen_lake"
LONG: dict[str, Any] = {"max_turns": 1000}
REPLY = "no answer"
"""It is parsed and refused, so that no episode ends before its turns are played."""


async def play(make: Callable[[int], Any], episodes: int, turns: int, server: int | None) -> tuple[float, float]:
    """Return the milliseconds per turn, on the clock and of the processor."""
    runners = [make(index) for index in range(episodes)]
    await asyncio.gather(*(runner.start() for runner in runners))

    async def step_all(runner: Any) -> None:
        for _ in range(turns):
            await runner.step(assistant(REPLY))

    began, cpu_began = time.perf_counter(), cpu_seconds(server)
    await asyncio.gather(*map(step_all, runners))
    took, cpu = time.perf_counter() - began, cpu_seconds(server) - cpu_began
    await asyncio.gather(*(runner.close() for runner in runners))
    return 1000 * took / (episodes * turns), 1000 * cpu / (episodes * turns)


def cpu_seconds(server: int | None) -> float:
    """Return the processor's time of this process and of the server."""
    own = time.process_time()
    if server is None:
        return own
    fields = Path(f"/proc/{server}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return own + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_served(episodes: int, turns: int) -> list[tuple[float, float]]:
    """Return the times per turn in this process, and over the server."""
    spec, client = load_spec(ENV), spec_of(OpenEnv)
    command = [sys.executable, "-m", "turnwise", "serve-env", ENV, "--port", "0", "--sessions", str(episodes)]
    with subprocess.Popen([*command, "--env.params.max_turns", "1000"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = next(word for word in server.stdout.readline().split() if word.startswith("http")).rstrip(",")
            facts_of(OpenEnv.Params.model_validate({"server": url}))
            times = []
            for params, made, pid in ((LONG, spec, None), (LONG | {"server": url}, client, server.pid)):

                def make(index: int, made: EnvSpec = made, params: dict[str, Any] = params) -> Any:
                    return made.make(Task(env=made.name, seed=seed_for("train", index), params=params))

                times.append(asyncio.run(play(make, episodes, turns, pid)))
        finally:
            server.terminate()
    return times


def measure_gymnasium(turns: int) -> tuple[float, float]:
    """Return the milliseconds per step in this process, without and with Gymnasium's interface."""
    runner = load_spec(ENV).make(Task(env=ENV, seed=0, params=LONG))

    async def alone() -> list[float]:
        await runner.start()
        waits = []
        for _ in range(turns):
            began = time.perf_counter()
            await runner.step(assistant(REPLY))
            waits.append(time.perf_counter() - began)
        return waits

    direct = asyncio.run(alone())
    env = tw.to_gymnasium(ENV, replies=True, **LONG)
    env.reset(seed=0)
    wrapped = []
    for _ in range(turns):
        began = time.perf_counter()
        env.step(REPLY)
        wrapped.append(time.perf_counter() - began)
    return 1000 * statistics.median(direct), 1000 * statistics.median(wrapped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    direct, served = measure_served(options.episodes, options.turns)
    alone, wrapped = measure_gymnasium(1000)
    table = Table("milliseconds per turn", "alone", "with it", "added", title=f"Overhead on {ENV}")
    for name, before, after in (
        (f"OpenEnv server, {options.episodes} episodes", direct[0], served[0]),
        ("  of the processor, both processes", direct[1], served[1]),
        ("Gymnasium, in this process", alone, wrapped),
    ):
        table.add_row(name, f"{before:.3f}", f"{after:.3f}", f"{after - before:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
