"""B6: tools that take their time. Episodes that go on alone against turns in lock-step, the same engine and episodes.

    python benchmarks/slow_tools.py [--episodes 1024] [--in-flight 256] [--turns 5] [--repeats 1]

Every turn calls a tool that takes as long as chance says: log-normal, median 0.5 s, 99th percentile 8 s, the same for
the same call in both orders. The engine sleeps instead of computing, for as long as a step of so many rows takes; all
that the episodes need of it is 110 s and some. Lock-step is what many trainers do: all episodes of a batch sample, all
call, the slowest is waited for, all sample again. idle: of the engine, over the middle 80 % of the time.
"""

import argparse
import asyncio
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from turnwise.core.chance import stream
from turnwise.core.protocols import Completion, Sampling, Session
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Trajectory
from turnwise.engine.scripted import ScriptedPolicy
from turnwise.envs.kind import EnvKind
from turnwise.envs.seeds import seed_for
from turnwise.envs.text_env import Outcome, lost
from turnwise.envs.tool_env import Style, ToolEnv
from turnwise.models.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.rollout.collect import Collector
from turnwise.rollout.context import FullHistory
from turnwise.rollout.episode import run_episode
from turnwise.rollout.limits import Limits
from turnwise.tools.function import from_function, tool
from turnwise.tools.tool import Tool

MEDIAN_S, SPREAD = 0.5, math.log(8 / 0.5) / statistics.NormalDist().inv_cdf(0.99)
TOKENS, STEP_S, ROW_S = 48, 0.002, 0.00045
"""Of a turn the tokens; of an engine's step the seconds, and those of each row in it."""
ENDLESS = 10**9


@tool(timeout_s=3600, concurrency=10**6)
async def wait(state: random.Random) -> str:
    """Takes its time."""
    await asyncio.sleep(MEDIAN_S * math.exp(SPREAD * state.gauss(0, 1)))
    return "done"


class Slow(ToolEnv):
    """Call until the end."""

    class Params(ToolEnv.Params):
        style: Style = "answer"
        max_tool_calls: int = 10**6

    @classmethod
    def make_tools(cls, params: Any) -> Sequence[Tool]:
        return [from_function(wait)]

    def reset(self, rng: random.Random) -> str:
        return "Go."

    def step(self, action: str) -> Outcome:
        return lost()

    def tool_state(self) -> random.Random:
        return self.rng


@dataclass(slots=True)
class SleepingEngine:
    """Batches whoever is ready at every step; `busy` has the stretches of time in which it had rows."""

    rows: dict[asyncio.Future[None], int] = field(default_factory=dict)
    busy: list[tuple[float, float]] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def turn(self) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.rows[done] = TOKENS
        self.wake.set()
        await done

    async def run(self) -> None:
        while True:
            await self.wake.wait()
            began = time.perf_counter()
            await asyncio.sleep(STEP_S + ROW_S * len(self.rows))
            self.busy.append((began, time.perf_counter()))
            self.rows = {row: left - 1 for row, left in self.rows.items()}
            for row in [row for row, left in self.rows.items() if left == 0]:
                del self.rows[row]
                row.set_result(None)
            await asyncio.sleep(0)
            if not self.rows:
                self.wake.clear()

    def idle(self, began: float, ended: float) -> float:
        """Of the middle 80 % the share without rows."""
        low, high = began + 0.1 * (ended - began), ended - 0.1 * (ended - began)
        return 1 - sum(max(0.0, min(end, high) - max(start, low)) for start, end in self.busy) / (high - low)


@dataclass(frozen=True, slots=True)
class SlowSession:
    session: Session
    engine: SleepingEngine

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        await self.engine.turn()
        return await self.session.generate(ids, sampling, restart)


@dataclass(frozen=True, slots=True)
class SlowPolicy:
    policy: ScriptedPolicy
    engine: SleepingEngine

    @asynccontextmanager
    async def _session(self, key: EpisodeKey) -> AsyncIterator[SlowSession]:
        async with self.policy.open(key) as session:
            yield SlowSession(session, self.engine)

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager[SlowSession]:
        return self._session(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    episodes: int
    in_flight: int
    turns: int

    @property
    def kind(self) -> EnvKind:
        return EnvKind(name="slow", kind="", cls=Slow)

    def tasks(self) -> list[Task]:
        params = self.kind.check_params({"max_turns": self.turns})
        return [Task(env="slow", params=params, seed=seed_for("train", number)) for number in range(self.episodes)]


class Barrier:
    """Lock-step: nobody of the batch samples before all have come."""

    def __init__(self, parties: int) -> None:
        self._barrier = asyncio.Barrier(parties)

    async def wait(self) -> None:
        await self._barrier.wait()


@dataclass(frozen=True, slots=True)
class LockedSession:
    session: SlowSession
    barrier: Barrier

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        await self.barrier.wait()
        return await self.session.generate(ids, sampling, restart)


async def alone(job: Job, policy: SlowPolicy, context: FullHistory, limits: Limits) -> list[Trajectory]:
    """As turnwise does it."""
    collector = Collector(
        policy=policy,
        make_env=job.kind.make,
        context=context,
        limits=limits,
        in_flight=job.in_flight,
        attempts=1,
        run_seed=0,
    )
    collected = await collector.collect(job.tasks(), group_size=1, round=0)
    return [trajectory for group in collected.groups for trajectory in group.trajectories]


async def in_lock_step(job: Job, policy: SlowPolicy, context: FullHistory, limits: Limits) -> list[Trajectory]:
    found: list[Trajectory] = []
    tasks = job.tasks()
    for first in range(0, len(tasks), job.in_flight):
        batch = tasks[first : first + job.in_flight]
        barrier = Barrier(len(batch))

        async def episode(task: Task, barrier: Barrier = barrier) -> Trajectory:
            key = EpisodeKey(run_seed=0, round=0, task=task, member=0)
            env = job.kind.make(task)
            async with AsyncExitStack() as stack:
                stack.push_async_callback(env.close)
                session = await stack.enter_async_context(policy.open(key))
                return await run_episode(key, env, LockedSession(session, barrier), context, limits)

        found += await asyncio.gather(*map(episode, batch))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    order: str
    seconds: float
    engine_s: float
    idle: float
    turns: int


async def measure(order: str, job: Job) -> Reading:
    renderer = Renderer(tiny_tokenizer())
    said = renderer.answer("<call>wait {}</call>")
    engine = SleepingEngine()
    policy = SlowPolicy(ScriptedPolicy(lambda *_: said, list(renderer.stop_ids)), engine)
    limits = Limits(sampling=Sampling(max_tokens=ENDLESS), max_tokens=ENDLESS, timeout_s=36000.0)
    working = asyncio.ensure_future(engine.run())
    began = time.perf_counter()
    found = await (alone if order == "alone" else in_lock_step)(job, policy, FullHistory(renderer), limits)
    ended = time.perf_counter()
    working.cancel()
    turns = sum(len(each.turns) for each in found)
    assert len(found) == job.episodes and turns == job.episodes * job.turns, "both orders play all of it"
    engine_s = sum(end - start for start, end in engine.busy)
    return Reading(order=order, seconds=ended - began, engine_s=engine_s, idle=engine.idle(began, ended), turns=turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    job = Job(episodes=given.episodes, in_flight=given.in_flight, turns=given.turns)
    chance = stream("an example of the waits")
    waits = sorted(MEDIAN_S * math.exp(SPREAD * chance.gauss(0, 1)) for _ in range(10_000))
    table = Table("order", "seconds", "of the engine", "idle in the middle", "turns", "ratio")
    for _ in range(given.repeats):
        readings = [asyncio.run(measure(order, job)) for order in ("alone", "lock-step")]
        for each in readings:
            numbers = (f"{each.seconds:.1f}", f"{each.engine_s:.1f}", f"{100 * each.idle:.1f} %", str(each.turns))
            table.add_row(each.order, *numbers, f"{each.seconds / readings[0].seconds:.2f}")
    console = Console(width=100)
    console.print(f"waits: median {waits[5000]:.2f} s, 99th percentile {waits[9900]:.2f} s")
    console.print(table)


if __name__ == "__main__":
    main()
