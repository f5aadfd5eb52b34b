"""Speed of the built-in environments without a model, and turnwise's overhead per turn.

    python benchmarks/environments.py [NAME ...] [--quick] [--tasks 1000] [--groups 16] [--group-size 8] [--repeats 5]

tasks     environments created and started, each with another seed
overlap   share of as many test tasks that start like one of these tasks: in a small environment, different seeds can
          give equal start states
env       turns of the environment alone with random legal actions; choosing them is not counted
rollout   turns of the same random play through everything that a training step runs besides the model: collector,
          rendering, parsing, records, scoring. A scripted policy replaces the engine
overhead  time of the rollout without environment and policy, per turn

All times are CPU times of one thread, which other load affects little. An environment with variants is followed by its
largest one; environments that need a missing package are left out.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from turnwise.core.messages import Message, assistant
from turnwise.core.protocols import Completion, Env, Observation, Policy, Sampling, Session, StepResult
from turnwise.core.task import EpisodeKey, Split, Task
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.catalogue import CATALOGUE
from turnwise.envs.registry import ENVIRONMENTS, load_spec
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvRunner, EnvSpec
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.rewards.scoring import ENV, RewardSet, score_groups
from turnwise.rollout.collect import Collector
from turnwise.rollout.context import FullContext
from turnwise.rollout.episode import Limits

VARIANTS: dict[str, dict[str, Any]] = {
    "frozen_lake": {"size": 8, "slippery": True},
    "sokoban": {"size": 8, "boxes": 2},
    "sudoku": {"size": 9},
}
"""Largest common variant of an environment."""
ALLOWED_MS = 0.3
"""Target of the overhead per turn."""
ENDLESS = 10**9
WARM_UP = 50
"""First tasks, which are not measured: some environments build tables with them that later tasks use."""
REWARDS = RewardSet(format_penalty=0.1, functions={}, weights={ENV: 1.0})

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    spec: EnvSpec
    params: dict[str, Any]

    @property
    def name(self) -> str:
        return " ".join([self.spec.name, *(f"{name}={value}" for name, value in self.params.items())])

    def task(self, number: int, split: Split = "train") -> Task:
        return Task(env=self.spec.name, params=self.params, split=split, seed=seed_for(split, number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    tasks: int
    groups: int
    group_size: int
    repeats: int


QUICK = Settings(tasks=5, groups=2, group_size=2, repeats=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    case: Case
    task_s: list[float]
    overlap: float
    env_s: float
    """Seconds per turn."""
    rollout_s: list[float]
    """Seconds per turn, by repeat."""
    overhead_s: list[float]
    """Seconds per turn, by repeat."""

    @property
    def overhead_ms(self) -> float:
        return 1000 * statistics.median(self.overhead_s)

    def row(self) -> list[str]:
        return [
            self.case.name,
            f"{len(self.task_s) / sum(self.task_s):,.0f}",
            f"{1000 * statistics.median(self.task_s):.2f}",
            f"{100 * self.overlap:.1f} %",
            f"{1 / self.env_s:,.0f}",
            f"{1 / statistics.median(self.rollout_s):,.0f}",
            f"{self.overhead_ms:.3f}",
            f"{1000 * min(self.overhead_s):.3f} to {1000 * max(self.overhead_s):.3f}",
        ]


@dataclass(slots=True)
class Clock:
    """Accumulates the CPU time of awaitables. They never suspend, so no other episode runs meanwhile."""

    seconds: float = 0.0
    calls: int = 0

    async def time(self, work: Awaitable[Result]) -> Result:
        began = time.thread_time()
        result = await work
        self.seconds += time.thread_time() - began
        self.calls += 1
        return result


class TimedEnv:
    def __init__(self, env: Env, clock: Clock) -> None:
        self._env, self._clock = env, clock

    async def start(self) -> Observation:
        return await self._clock.time(self._env.start())

    async def step(self, action: Message) -> StepResult:
        return await self._clock.time(self._env.step(action))

    async def close(self) -> None:
        await self._env.close()


@dataclass(frozen=True, slots=True)
class TimedSession:
    session: Session
    clock: Clock

    @property
    def sampling_s(self) -> float:
        return self.session.sampling_s

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        return await self.clock.time(self.session.generate(ids, sampling, restart))

    @asynccontextmanager
    async def fork(self, key: EpisodeKey, length: int | None = None) -> AsyncIterator["TimedSession"]:
        async with self.session.fork(key, length) as fork:
            yield TimedSession(fork, self.clock)


@dataclass(frozen=True, slots=True)
class TimedPolicy:
    policy: Policy
    clock: Clock

    @asynccontextmanager
    async def _session(self, key: EpisodeKey) -> AsyncIterator[TimedSession]:
        async with self.policy.open(key) as session:
            yield TimedSession(session, self.clock)

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager[TimedSession]:
        return self._session(key)


async def start_tasks(case: Case, count: int, split: Split) -> tuple[list[float], list[str]]:
    """Return seconds and first message of each task, without the warm-up tasks."""
    seconds, openings = [], []
    for number in range(WARM_UP + count):
        began = time.thread_time()
        opening = await case.spec.make(case.task(number, split)).start()
        seconds.append(time.thread_time() - began)
        openings.append(opening.messages[-1].content)
    return seconds[WARM_UP:], openings[WARM_UP:]


async def run_env(case: Case, tasks: Sequence[Task], group_size: int) -> Clock:
    """Play at random in the environments. The clock runs during the steps."""
    clock = Clock()
    for task in tasks:
        for member in range(group_size):
            runner, rng, over = case.spec.make(task, member), random.Random(member), False
            await runner.start()
            while not over:
                answer = assistant(random_answer(runner, rng))
                over = (await clock.time(runner.step(answer))).over
    return clock


def random_answer(runner: EnvRunner, rng: random.Random) -> str:
    answer = runner.random_answer(rng)
    assert answer is not None, f"{type(runner.env).__name__} has no random player"
    return answer


async def run_rollout(case: Case, tasks: Sequence[Task], group_size: int) -> tuple[float, float]:
    """Return seconds per turn of the rollout, and of the rollout without environments and policy."""
    renderer, envs, engine = Renderer(tiny_tokenizer()), Clock(), Clock()
    players: dict[tuple[int, int], tuple[EnvRunner, random.Random]] = {}

    def make_env(task: Task, member: int, attempt: int) -> TimedEnv:
        began = time.thread_time()
        env = case.spec.make(task, member, attempt)
        envs.seconds += time.thread_time() - began
        players[task.seed, member] = env, random.Random(member)
        return TimedEnv(env, envs)

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> list[int]:
        return renderer.answer(random_answer(*players[key.task.seed, key.member]))

    collector = Collector(
        policy=TimedPolicy(ScriptedEngine(script, list(renderer.stop_ids)), engine),
        make_env=make_env,
        context=FullContext(renderer),
        limits=Limits(sampling=Sampling(max_tokens=ENDLESS), max_tokens=ENDLESS, timeout_s=3600.0),
        in_flight=len(tasks) * group_size,
        attempts=1,
        run_seed=0,
    )
    began = time.thread_time()
    collected = await collector.collect(tasks, group_size=group_size, round=0)
    groups = (await score_groups(collected.groups, REWARDS)).groups
    seconds = time.thread_time() - began
    turns = sum(each.num_turns for group in groups for each in group.trajectories)
    assert turns == engine.calls, "each turn has one answer"
    return seconds / turns, (seconds - envs.seconds - engine.seconds) / turns


async def measure(case: Case, settings: Settings) -> Measured:
    """Every part uses other tasks, so that no part benefits from what an environment cached."""
    task_s, openings = await start_tasks(case, settings.tasks, "train")
    _, held_out = await start_tasks(case, settings.tasks, "test")
    known = set(openings)
    overlap = statistics.fmean(opening in known for opening in held_out)
    rounds = [
        [case.task(WARM_UP + settings.tasks + number * settings.groups + index) for index in range(settings.groups)]
        for number in range(2 + settings.repeats)
    ]
    clock = await run_env(case, rounds[0], settings.group_size)
    rollouts = [await run_rollout(case, tasks, settings.group_size) for tasks in rounds[1:]]
    rollout_s, overhead_s = map(list, zip(*rollouts[1:], strict=True))  # the first is a warm-up
    return Measured(
        case=case,
        task_s=task_s,
        overlap=overlap,
        env_s=clock.seconds / clock.calls,
        rollout_s=rollout_s,
        overhead_s=overhead_s,
    )


def cases(names: Sequence[str]) -> list[Case]:
    selected = []
    for spec in map(load_spec, names):
        variants = [{}, VARIANTS[spec.name]] if spec.name in VARIANTS else [{}]
        selected += [Case(spec=spec, params=params) for params in variants if not spec.install_command]
    return selected


def table_of(measured: Sequence[Measured], settings: Settings) -> Table:
    episodes = f"{settings.groups} groups of {settings.group_size}"
    table = Table(
        title=f"{settings.tasks} tasks; {episodes} episodes, medians of {settings.repeats} repeats; one thread"
    )
    table.add_column("environment")
    for column in (
        "tasks/s",
        "ms per task\n(median)",
        "overlap",
        "env\nturns/s",
        "rollout\nturns/s",
        "overhead\nms per turn",
        "from .. to",
    ):
        table.add_column(column, justify="right")
    for each in measured:
        table.add_row(*each.row())
    return table


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", metavar="NAME", help="default: all that need no further package")
    parser.add_argument("--quick", action="store_true", help="few tasks and one repeat, as a test")
    parser.add_argument("--tasks", type=int, default=1000, help="tasks to create per environment")
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args(words)


def run(args: argparse.Namespace, console: Console) -> list[Measured]:
    full = Settings(tasks=args.tasks, groups=args.groups, group_size=args.group_size, repeats=args.repeats)
    settings = QUICK if args.quick else full
    names = args.environments or [name for name in ENVIRONMENTS if not CATALOGUE[name].needs]
    measured = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=None)
        selected = cases(names)
        for number, case in enumerate(selected):
            progress.update(bar, description=case.name, completed=number, total=len(selected))
            measured.append(asyncio.run(measure(case, settings)))
    console.print(table_of(measured, settings))
    if not args.quick:
        above = [each.case.name for each in measured if each.overhead_ms >= ALLOWED_MS]
        console.print(
            f"overhead below {ALLOWED_MS} ms per turn: " + ("all" if not above else f"not {', '.join(above)}")
        )
    return measured


if __name__ == "__main__":
    run(arguments(), Console(width=120))
