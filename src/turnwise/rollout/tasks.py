"""Which tasks are drawn: a function of the run's seed and the step, so that a resumed run draws the same ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.core.chance import address
from turnwise.core.task import Split, Task
from turnwise.envs.seeds import RANGE, seed_for


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    env: str
    params: Mapping[str, Any]
    run_seed: int

    def training(self, step: int, count: int, start: int = 0) -> list[Task]:
        """Fresh tasks of the training split; `start`: how many the step has drawn before."""
        numbers = range(start, start + count)
        return [self.task("train", address("task", self.run_seed, step, index) % RANGE) for index in numbers]

    def held_out(self, split: Split, count: int) -> list[Task]:
        """The first tasks of a split: the same in every run, so that evaluations can be compared."""
        return [self.task(split, index) for index in range(count)]

    def task(self, split: Split, index: int) -> Task:
        return Task(env=self.env, params=self.params, split=split, seed=seed_for(split, index))
