"""Task source: draws each step's tasks from the mix of environments, by weight, by row or by curriculum.

A draw is a function of the run's seed, the step and the success counts alone, so a resumed run draws the same tasks.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, islice
from typing import Any

from turnwise.core.random_streams import address, random_stream
from turnwise.core.task import Split, Task
from turnwise.core.trajectory import Group
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for

NUM_ADDRESSES = 1 << 63
"""How many there are."""


SuccessCounts = Mapping[str, tuple[float, float]]
"""By task: successes and tries, older ones counting less. Plain numbers, so that a checkpoint can hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvMixEntry:
    """An environment with its parameters, one of those that a run draws from."""

    env: str
    params: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    sizes: Mapping[Split, int] = field(default_factory=dict)
    """How many tasks a split has, where they are counted: rows of a file. Else there is no end of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    pool: int
    """Training tasks of each environment."""
    floor: float
    """The weight, at least, of any task: what is never drawn is never found to have become easier."""
    memory: float
    """What is left of a task's earlier measurements when it is success_counts again."""

    def weight(self, success_counts: SuccessCounts, task: str) -> float:
        """From the floor to 1: 4 p (1 - p) of its rate of success p, which is guessed to be a half before any try."""
        successes, tries = success_counts.get(task, (0.0, 0.0))
        rate = (successes + 1) / (tries + 2)
        return max(self.floor, 4 * rate * (1 - rate))

    def update(self, success_counts: SuccessCounts, groups: Iterable[Group]) -> dict[str, tuple[float, float]]:
        """What is known once these groups were played; members that broke say nothing."""
        found = dict(success_counts)
        for group in groups:
            sound = [each for each in group.trajectories if not each.status.errored]
            if sound:
                name = task_name(group.task.env, group.task.seed)
                successes, tries = found.get(name, (0.0, 0.0))
                won = sum(each.status.succeeded for each in sound)
                found[name] = (self.memory * successes + won, self.memory * tries + len(sound))
        return found

    def metrics(self, success_counts: SuccessCounts) -> dict[str, float]:
        """How many tasks were success_counts, and which share of these is nearly always or nearly never solved."""
        rates = [successes / tries for successes, tries in success_counts.values()]
        if not rates:
            return {}
        return {
            "curriculum/measured": float(len(rates)),
            "curriculum/solved": sum(rate > 0.9 for rate in rates) / len(rates),
            "curriculum/unsolved": sum(rate < 0.1 for rate in rates) / len(rates),
        }


def task_name(env: str, seed: int) -> str:
    return f"{env}:{seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    mix: tuple[EnvMixEntry, ...]
    run_seed: int
    curriculum: Curriculum | None = None
    """None: every task is a fresh one."""

    def draw(self, step: int, count: int, start: int = 0, success_counts: SuccessCounts | None = None) -> list[Task]:
        """Draw tasks of the training split. Where they are rows, each comes once in a step before any comes again.

        `start`: how many the step has drawn before; `success_counts`: how tasks fared so far, for the curriculum.
        """
        worlds = [self._world(step, index) for index in range(start + count)]
        draws = {world.env: self._draw(world, step, success_counts or {}) for world in worlds}
        drawn = [(draws[world.env](index), world) for index, world in enumerate(worlds)]
        return [self.task("train", place, world) for place, world in drawn][start:]

    def _draw(self, world: EnvMixEntry, step: int, success_counts: SuccessCounts) -> Callable[[int], int]:
        """Return the function that draws the place, within its world's training split, of a step's task number."""

        def number(index: int) -> int:
            return address("task", self.run_seed, step, index)

        rows = world.sizes.get("train")
        if self.curriculum is not None:
            pool = self._pool(world, self.curriculum.pool)
            names = [task_name(world.env, seed_for("train", place)) for place in pool]
            weights = [self.curriculum.weight(success_counts, name) for name in names]
            left = list[float]()
            return lambda index: pool[_take(weights, left, number(index))]
        if rows is not None:
            shuffled = _shuffled(rows, "rows", self.run_seed, step, world.env)
            return lambda index: next(shuffled)
        return lambda index: number(index) % SEEDS_PER_SPLIT

    def _pool(self, world: EnvMixEntry, size: int) -> Sequence[int]:
        """Return the places that the curriculum draws from: the first tasks of the split, or a sample of its rows.

        Rows are sampled since files are often in order, as of difficulty. Fewer rows than `size`: all of them.
        """
        rows = world.sizes.get("train")
        if rows is None:
            return range(size)
        shuffled = _shuffled(rows, "pool", self.run_seed, world.env)
        return sorted(islice(shuffled, min(size, rows)))

    def first_tasks(self, split: Split, count: int) -> list[Task]:
        """The first tasks of a split, as many of each world: the same in every run, so that evaluations compare."""
        many = len(self.mix)
        places = [(number // many, self.mix[number % many]) for number in range(count)]
        return [
            self.task(split, index, world) for index, world in places if index < world.sizes.get(split, SEEDS_PER_SPLIT)
        ]

    def task(self, split: Split, index: int, world: EnvMixEntry | None = None) -> Task:
        world = self.mix[0] if world is None else world
        return Task(env=world.env, params=world.params, split=split, seed=seed_for(split, index))

    def _world(self, step: int, index: int) -> EnvMixEntry:
        if len(self.mix) == 1:
            return self.mix[0]
        weights = [world.weight for world in self.mix]
        return self.mix[_drawn(weights, address("world", self.run_seed, step, index))]


def _shuffled(size: int, *parts: Any) -> Iterator[int]:
    """0 to size - 1 in an order of its own, then again in another, without end; nothing is made before it is asked."""
    for epoch in count():
        chance, moved = random_stream(*parts, epoch), dict[int, int]()
        for place in range(size):
            chosen = chance.randrange(place, size)
            yield moved.get(chosen, chosen)
            moved[chosen] = moved.get(place, place)


def _drawn(weights: Sequence[float], number: int) -> int:
    """The place at which the running sum of the weights passes a share of their total that the address decides."""
    sums = list(accumulate(weights))
    return bisect_right(sums, number / NUM_ADDRESSES * sums[-1], hi=len(sums) - 1)


def _take(weights: Sequence[float], left: list[float], number: int) -> int:
    """Draw a place by its weight, without replacement: the same task twice in a step would be the same episodes twice.

    `left` holds the weights of the places not yet drawn and is refilled when none is left.
    """
    if not any(left):
        left[:] = weights
    place = _drawn(left, number)
    left[place] = 0.0
    return place
