"""Which tasks are drawn: a function of the run's seed, the step and what was measured, so that a resumed run draws the
same ones.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Any

from turnwise.core.chance import address, stream
from turnwise.core.task import Split, Task
from turnwise.envs.seeds import RANGE, seed_for
from turnwise.rollout.curriculum import Curriculum, Measured, task_name


def _shuffled(size: int, *parts: Any) -> Iterator[int]:
    """0 to size - 1 in an order of its own, then again in another, without end; nothing is made before it is asked."""
    for epoch in count():
        chance, moved = stream(*parts, epoch), dict[int, int]()
        for place in range(size):
            chosen = chance.randrange(place, size)
            yield moved.get(chosen, chosen)
            moved[chosen] = moved.get(place, place)


ADDRESSES = 1 << 63
"""How many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """An environment with its parameters, one of those that a run draws from."""

    env: str
    params: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    sizes: Mapping[Split, int] = field(default_factory=dict)
    """How many tasks a split has, where they are counted: rows of a file. Else there is no end of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    worlds: tuple[World, ...]
    run_seed: int
    curriculum: Curriculum | None = None
    """None: every task is a fresh one."""

    def training(self, step: int, count: int, start: int = 0, measured: Measured | None = None) -> list[Task]:
        """Tasks of the training split, no two of them the same; `start`: how many the step has drawn before."""
        numbers = range(start + count)
        worlds = [self._world(step, index) for index in numbers]
        addresses = [address("task", self.run_seed, step, index) for index in numbers]
        if self.curriculum is None:
            places = [number % RANGE for number in addresses]
        else:
            pools = {world.env: self._weights(world, self.curriculum, measured or {}) for world in worlds}
            places = [_taken(pools[world.env], number) for world, number in zip(worlds, addresses, strict=True)]
        places = self._within(worlds, places, step)
        return [self.task("train", place, world) for world, place in zip(worlds, places, strict=True)][start:]

    def _within(self, worlds: Sequence[World], places: Sequence[int], step: int) -> list[int]:
        """Where tasks are counted, each comes once in a step before any comes again."""
        rows = {
            world.env: _shuffled(world.sizes["train"], "rows", self.run_seed, step, world.env)
            for world in worlds
            if "train" in world.sizes
        }
        return [
            next(rows[world.env]) if world.env in rows else place for world, place in zip(worlds, places, strict=True)
        ]

    def held_out(self, split: Split, count: int) -> list[Task]:
        """The first tasks of a split, as many of each world: the same in every run, so that evaluations compare."""
        many = len(self.worlds)
        places = [(number // many, self.worlds[number % many]) for number in range(count)]
        return [self.task(split, index, world) for index, world in places if index < world.sizes.get(split, RANGE)]

    def task(self, split: Split, index: int, world: World | None = None) -> Task:
        world = self.worlds[0] if world is None else world
        return Task(env=world.env, params=world.params, split=split, seed=seed_for(split, index))

    def _world(self, step: int, index: int) -> World:
        if len(self.worlds) == 1:
            return self.worlds[0]
        weights = [world.weight for world in self.worlds]
        return self.worlds[_drawn(weights, address("world", self.run_seed, step, index))]

    def _weights(self, world: World, curriculum: Curriculum, measured: Measured) -> list[float]:
        """Of the tasks of a world's pool."""
        names = (task_name(world.env, seed_for("train", index)) for index in range(curriculum.pool))
        return [curriculum.weight(measured, name) for name in names]


def _drawn(weights: Sequence[float], number: int) -> int:
    """The place at which the running sum of the weights passes a share of their total that the address decides."""
    sums = list(accumulate(weights))
    return bisect_right(sums, number / ADDRESSES * sums[-1], hi=len(sums) - 1)


def _taken(weights: list[float], number: int) -> int:
    """Draws a place that is then empty: twice the same task in a step would be the same episodes twice."""
    place = _drawn(weights, number)
    weights[place] = 0.0
    return place
