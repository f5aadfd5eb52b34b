"""Task source: draws each step's tasks from the mix of environments, by weight, by row or by curriculum.

A draw is a function of the run's seed, the step and the success counts alone, so a resumed run draws the same tasks.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, islice
from typing import Any

from turnwise.core.random_streams import address, random_stream
from turnwise.core.task import Split, Task
from turnwise.core.trajectory import Group
from turnwise.envs.games.selfplay import as_player
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for

NUM_ADDRESSES = 1 << 63
"""Number of random addresses: they have 63 bits."""


SuccessCounts = Mapping[str, tuple[float, float]]
"""Task name -> (successes, tries), with older results decayed. Plain numbers, for the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvMixEntry:
    """An environment of the mix, with its parameters and sampling weight."""

    env: str
    params: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    sizes: Mapping[Split, int] = field(default_factory=dict)
    """Number of tasks per split for environments with a fixed set of rows. Others have no limit."""


MIN_WEIGHT = 0.1
"""Least weight of a task of the curriculum, so that every task is measured again sometimes."""
MEMORY = 0.5
"""Factor of a task's earlier counts when it is measured again, since the policy has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """Draws tasks from a pool, mostly those that are sometimes solved.

    A task that always succeeds or always fails gives all members of a group the same reward: nothing to learn from.
    """

    pool: int
    """Number of training tasks per environment."""

    def weight(self, success_counts: SuccessCounts, task: str) -> float:
        """Return 4 p (1 - p), at least MIN_WEIGHT, for the success rate p, estimated as 1/2 before any try."""
        successes, tries = success_counts.get(task, (0.0, 0.0))
        rate = (successes + 1) / (tries + 2)
        return max(MIN_WEIGHT, 4 * rate * (1 - rate))

    def update(self, success_counts: SuccessCounts, groups: Iterable[Group]) -> dict[str, tuple[float, float]]:
        """Return the counts after these groups."""
        counts = dict(success_counts)
        for group in groups:
            name = task_name(group.task.env, group.task.seed)
            successes, tries = counts.get(name, (0.0, 0.0))
            won = sum(trajectory.status.succeeded for trajectory in group.trajectories)
            counts[name] = (MEMORY * successes + won, MEMORY * tries + len(group.trajectories))
        return counts

    def metrics(self, success_counts: SuccessCounts) -> dict[str, float]:
        """Return the number of measured tasks and the shares that are nearly always and nearly never solved."""
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
    """None: draw fresh tasks."""

    def draw(self, step: int, count: int, start: int = 0, success_counts: SuccessCounts | None = None) -> list[Task]:
        """Draw training tasks. In an environment with rows, none repeats within a step before all were drawn.

        `start` is the number of tasks that the step has already drawn; `success_counts` are for the curriculum.
        """
        entries = [self._choose_env(step, index) for index in range(start + count)]
        draws = {entry.env: self._draw(entry, step, success_counts or {}) for entry in entries}
        drawn = [(draws[entry.env](index), entry) for index, entry in enumerate(entries)]
        return [self.task("train", position, entry) for position, entry in drawn][start:]

    def _draw(self, entry: EnvMixEntry, step: int, success_counts: SuccessCounts) -> Callable[[int], int]:
        """Return a function from a task's number within the step to its index in the training split."""

        def number(index: int) -> int:
            return address("task", self.run_seed, step, index)

        rows = entry.sizes.get("train")
        if self.curriculum is not None:
            pool = self._pool(entry, self.curriculum.pool)
            names = [task_name(entry.env, seed_for("train", position)) for position in pool]
            weights = [self.curriculum.weight(success_counts, name) for name in names]
            left = list[float]()
            return lambda index: pool[_draw_without_replacement(weights, left, number(index))]
        if rows is not None:
            shuffled = _shuffled(rows, "rows", self.run_seed, step, entry.env)
            return lambda index: next(shuffled)
        return lambda index: number(index) % SEEDS_PER_SPLIT

    def _pool(self, entry: EnvMixEntry, size: int) -> Sequence[int]:
        """Return the indices that the curriculum draws from: the first tasks of the split, or a sample of its rows.

        Rows are sampled because files are often sorted, for example by difficulty.
        """
        rows = entry.sizes.get("train")
        if rows is None:
            return range(size)
        shuffled = _shuffled(rows, "pool", self.run_seed, entry.env)
        return sorted(islice(shuffled, min(size, rows)))

    def first_tasks(self, split: Split, count: int) -> list[Task]:
        """Return the first tasks of a split, equally many per environment: the same in every run, for comparison."""
        many = len(self.mix)
        indices = [(number // many, self.mix[number % many]) for number in range(count)]
        return [
            self.task(split, index, entry)
            for index, entry in indices
            if index < entry.sizes.get(split, SEEDS_PER_SPLIT)
        ]

    def task(self, split: Split, index: int, entry: EnvMixEntry | None = None) -> Task:
        entry = self.mix[0] if entry is None else entry
        return Task(env=entry.env, params=entry.params, split=split, seed=seed_for(split, index))

    def _choose_env(self, step: int, index: int) -> EnvMixEntry:
        if len(self.mix) == 1:
            return self.mix[0]
        weights = [entry.weight for entry in self.mix]
        # "world" is the key of this random stream. Another word would draw other environments.
        return self.mix[_draw_weighted(weights, address("world", self.run_seed, step, index))]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfPlayTasks(TaskSource):
    """Tasks that alternate between the first and the second player."""

    both: bool
    """Draw tasks in pairs, one for each player of a match. False alternates players over different tasks."""
    random_moves: int = 0
    """Random opening moves of training tasks; held-out tasks start from the game's own start."""

    def draw(self, step: int, count: int, start: int = 0, success_counts: SuccessCounts | None = None) -> list[Task]:
        players = 2 if self.both else 1
        drawn = TaskSource.draw(self, step, count // players, start // players, success_counts)
        tasks = [replace(task, params={**task.params, "random_moves": self.random_moves}) for task in drawn]
        return alternate_players([task for task in tasks for _ in range(players)], start)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTasks(TaskSource):
    """Tasks of all trained roles: each match gives one to each of them, one after the other."""

    roles: tuple[str, ...]

    def draw(self, step: int, count: int, start: int = 0, success_counts: SuccessCounts | None = None) -> list[Task]:
        many = len(self.roles)
        return self._for_roles(TaskSource.draw(self, step, count // many, start // many, success_counts))

    def first_tasks(self, split: Split, count: int) -> list[Task]:
        many = len(self.roles)
        return self._for_roles(TaskSource.first_tasks(self, split, -(-count // many)))

    def _for_roles(self, tasks: Sequence[Task]) -> list[Task]:
        return [task.as_role(role) for task in tasks for role in self.roles]


def alternate_players(tasks: Sequence[Task], start: int = 0) -> list[Task]:
    """Assign the two players to the tasks in turn, counted from `start`."""
    return [as_player(task, number % 2) for number, task in enumerate(tasks, start)]


def _shuffled(size: int, *parts: Any) -> Iterator[int]:
    """Yield 0 to size - 1 in random order, then again in another order, endlessly and lazily."""
    for epoch in count():
        rng, moved = random_stream(*parts, epoch), dict[int, int]()
        for position in range(size):
            chosen = rng.randrange(position, size)
            yield moved.get(chosen, chosen)
            moved[chosen] = moved.get(position, position)


def _draw_weighted(weights: Sequence[float], number: int) -> int:
    """Return an index drawn by weight, from a random address."""
    sums = list(accumulate(weights))
    return bisect_right(sums, number / NUM_ADDRESSES * sums[-1], hi=len(sums) - 1)


def _draw_without_replacement(weights: Sequence[float], left: list[float], number: int) -> int:
    """Draw an index by weight without replacement: a task twice in a step would give the same episodes twice.

    `left` holds the weights of the indices not yet drawn; it is refilled when it is used up.
    """
    if not any(left):
        left[:] = weights
    position = _draw_weighted(left, number)
    left[position] = 0.0
    return position
