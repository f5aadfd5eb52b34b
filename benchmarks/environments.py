"""The built-in environments without a model: how fast tasks are made and steps are run, and what a turn costs on top.

    python benchmarks/environments.py [NAME ...] [--quick] [--tasks 1000] [--groups 16] [--group-size 8] [--repeats 5]

tasks   an environment is made and started, each time with another seed
seen    of as many tasks of the test split, the share that opens like one of these: in a small world seeds that differ
        still give start states that do not
alone   its turns, with random legal answers straight into it; the time to think of these is not counted
path    turns of the same random play through everything that a step of training runs besides the model: the collector,
        rendering, parsing, the records, scoring. A scripted policy stands for the engine, thinks and says the tokens
rest    the time of the path less that of the environments and that of the policy, a turn: what turnwise itself takes

All is CPU time of one thread, so that what else runs on the machine counts little. Below an environment stands the
largest of its variants; one that needs a package that is not installed is left out.
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
from turnwise.envs.registry import ENVIRONMENTS, load_spec
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import TextEnv
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer
from turnwise.rewards.scoring import ENV, RewardSet, score_groups
from turnwise.rollout.collect import Collector
from turnwise.rollout.context import FullContext
from turnwise.rollout.limits import Limits

VARIANTS: dict[str, dict[str, Any]] = {
    "frozen_lake": {"size": 8, "slippery": True},
    "sokoban": {"size": 8, "boxes": 2},
    "sudoku": {"size": 9},
}
"""The largest that are usual."""
ALLOWED_MS = 0.3
"""What turnwise itself may take, a turn."""
ENDLESS = 10**9
WARM_UP = 50
"""Tasks of which many an environment makes tables that serve all later ones."""
REWARDS = RewardSet(format_penalty=0.1, functions={}, weights={ENV: 1.0})

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    kind: EnvSpec
    params: dict[str, Any]

    @property
    def name(self) -> str:
        return " ".join([self.kind.name, *(f"{name}={value}" for name, value in self.params.items())])

    def task(self, number: int, split: Split = "train") -> Task:
        return Task(env=self.kind.name, params=self.params, split=split, seed=seed_for(split, number))


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    tasks: int
    groups: int
    group_size: int
    repeats: int


QUICK = Effort(tasks=5, groups=2, group_size=2, repeats=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    case: Case
    task_s: list[float]
    seen: float
    alone_s: float
    """A turn."""
    path_s: list[float]
    """A turn, by repeat."""
    rest_s: list[float]
    """Likewise."""

    @property
    def rest_ms(self) -> float:
        return 1000 * statistics.median(self.rest_s)

    def row(self) -> list[str]:
        return [
            self.case.name,
            f"{len(self.task_s) / sum(self.task_s):,.0f}",
            f"{1000 * statistics.median(self.task_s):.2f}",
            f"{100 * self.seen:.1f} %",
            f"{1 / self.alone_s:,.0f}",
            f"{1 / statistics.median(self.path_s):,.0f}",
            f"{self.rest_ms:.3f}",
            f"{1000 * min(self.rest_s):.3f} to {1000 * max(self.rest_s):.3f}",
        ]


@dataclass(slots=True)
class Clock:
    """CPU time spent inside of what it is held against. Nothing here ever waits, so no other episode runs meanwhile."""

    seconds: float = 0.0
    calls: int = 0

    async def timed(self, work: Awaitable[Found]) -> Found:
        began = time.thread_time()
        found = await work
        self.seconds += time.thread_time() - began
        self.calls += 1
        return found


class TimedEnv:
    def __init__(self, env: Env, clock: Clock) -> None:
        self._env, self._clock = env, clock

    async def start(self) -> Observation:
        return await self._clock.timed(self._env.start())

    async def step(self, action: Message) -> StepResult:
        return await self._clock.timed(self._env.step(action))

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
        return await self.clock.timed(self.session.generate(ids, sampling, restart))


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


async def generation(case: Case, count: int, split: Split) -> tuple[list[float], list[str]]:
    """Seconds of each task and what it says first; the first ones, which may fill tables made once, are left out."""
    seconds, openings = [], []
    for number in range(WARM_UP + count):
        began = time.thread_time()
        opening = await case.kind.make(case.task(number, split)).start()
        seconds.append(time.thread_time() - began)
        openings.append(opening.messages[-1].content)
    return seconds[WARM_UP:], openings[WARM_UP:]


async def alone(case: Case, tasks: Sequence[Task], group_size: int) -> Clock:
    """Random play of every member straight in its environment; the clock runs during the steps."""
    clock = Clock()
    for task in tasks:
        for member in range(group_size):
            runner, rng, over = case.kind.make(task, member), random.Random(member), False
            await runner.start()
            while not over:
                answer = assistant(thought(runner.env, rng))
                over = (await clock.timed(runner.step(answer))).over
    return clock


def thought(env: TextEnv, rng: random.Random) -> str:
    answer = env.random_answer(rng)
    assert answer is not None, f"{type(env).__name__} has no random player"
    return answer


async def whole_path(case: Case, tasks: Sequence[Task], group_size: int) -> tuple[float, float]:
    """Seconds a turn of the whole path, and of it without environments and policy."""
    renderer, worlds, engine = Renderer(tiny_tokenizer()), Clock(), Clock()
    players: dict[tuple[int, int], tuple[TextEnv, random.Random]] = {}

    def make_env(task: Task, member: int, attempt: int) -> TimedEnv:
        began = time.thread_time()
        env = case.kind.make(task, member, attempt)
        worlds.seconds += time.thread_time() - began
        players[task.seed, member] = env.env, random.Random(member)
        return TimedEnv(env, worlds)

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> list[int]:
        return renderer.answer(thought(*players[key.task.seed, key.member]))

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
    assert turns == engine.calls, "a turn is one answer"
    return seconds / turns, (seconds - worlds.seconds - engine.seconds) / turns


async def measure(case: Case, effort: Effort) -> Measured:
    """Every part meets tasks of its own: what an environment keeps of earlier ones helps none."""
    task_s, openings = await generation(case, effort.tasks, "train")
    _, held_out = await generation(case, effort.tasks, "test")
    known = set(openings)
    seen = statistics.fmean(opening in known for opening in held_out)
    rounds = [
        [case.task(WARM_UP + effort.tasks + number * effort.groups + place) for place in range(effort.groups)]
        for number in range(2 + effort.repeats)
    ]
    clock = await alone(case, rounds[0], effort.group_size)
    paths = [await whole_path(case, tasks, effort.group_size) for tasks in rounds[1:]]
    path_s, rest_s = map(list, zip(*paths[1:], strict=True))  # the first warms up
    return Measured(
        case=case, task_s=task_s, seen=seen, alone_s=clock.seconds / clock.calls, path_s=path_s, rest_s=rest_s
    )


def cases(names: Sequence[str]) -> list[Case]:
    found = []
    for kind in map(load_spec, names):
        variants = [{}, VARIANTS[kind.name]] if kind.name in VARIANTS else [{}]
        found += [Case(kind=kind, params=params) for params in variants if not kind.install_command]
    return found


def table_of(measured: Sequence[Measured], effort: Effort) -> Table:
    episodes = f"{effort.groups} groups of {effort.group_size}"
    table = Table(title=f"{effort.tasks} tasks; {episodes} episodes, medians of {effort.repeats} repeats; one thread")
    table.add_column("environment")
    for column in (
        "tasks/s",
        "ms a task\n(median)",
        "seen",
        "alone\nturns/s",
        "path\nturns/s",
        "rest\nms a turn",
        "from .. to",
    ):
        table.add_column(column, justify="right")
    for each in measured:
        table.add_row(*each.row())
    return table


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", metavar="NAME", help="default: all that need nothing installed")
    parser.add_argument("--quick", action="store_true", help="a few tasks of each, one repeat: does it run?")
    parser.add_argument("--tasks", type=int, default=1000, help="made for the first two columns")
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args(words)


def run(given: argparse.Namespace, console: Console) -> list[Measured]:
    full = Effort(tasks=given.tasks, groups=given.groups, group_size=given.group_size, repeats=given.repeats)
    effort = QUICK if given.quick else full
    names = given.environments or [name for name in ENVIRONMENTS if not load_spec(name).cls.needs]
    measured = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        doing = progress.add_task("", total=None)
        asked = cases(names)
        for number, case in enumerate(asked):
            progress.update(doing, description=case.name, completed=number, total=len(asked))
            measured.append(asyncio.run(measure(case, effort)))
    console.print(table_of(measured, effort))
    if not given.quick:
        above = [each.case.name for each in measured if each.rest_ms >= ALLOWED_MS]
        console.print(f"rest below {ALLOWED_MS} ms a turn: " + ("all" if not above else f"not {', '.join(above)}"))
    return measured


if __name__ == "__main__":
    run(arguments(), Console(width=120))
