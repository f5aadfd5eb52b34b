"""A curriculum by measured success: of a pool of tasks, those that are sometimes solved are drawn most.

A task that always succeeds or always fails gives all members of a group the same reward: nothing to learn from.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from turnwise.core.trajectory import Group

Measured = Mapping[str, tuple[float, float]]
"""By task: successes and tries, older ones counting less. Plain numbers, so that a checkpoint can hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    pool: int
    """Training tasks of each environment."""
    floor: float
    """The weight, at least, of any task: what is never drawn is never found to have become easier."""
    memory: float
    """What is left of a task's earlier measurements when it is measured again."""

    def weight(self, measured: Measured, task: str) -> float:
        """From the floor to 1: 4 p (1 - p) of its rate of success p, which is guessed to be a half before any try."""
        successes, tries = measured.get(task, (0.0, 0.0))
        rate = (successes + 1) / (tries + 2)
        return max(self.floor, 4 * rate * (1 - rate))

    def after(self, measured: Measured, groups: Iterable[Group]) -> dict[str, tuple[float, float]]:
        """What is known once these groups were played; members that broke say nothing."""
        found = dict(measured)
        for group in groups:
            sound = [each for each in group.trajectories if not each.status.errored]
            if sound:
                name = task_name(group.task.env, group.task.seed)
                successes, tries = found.get(name, (0.0, 0.0))
                won = sum(each.status.succeeded for each in sound)
                found[name] = (self.memory * successes + won, self.memory * tries + len(sound))
        return found

    def metrics(self, measured: Measured) -> dict[str, float]:
        """How many tasks were measured, and which share of these is nearly always or nearly never solved."""
        rates = [successes / tries for successes, tries in measured.values()]
        if not rates:
            return {}
        return {
            "curriculum/measured": float(len(rates)),
            "curriculum/solved": sum(rate > 0.9 for rate in rates) / len(rates),
            "curriculum/unsolved": sum(rate < 0.1 for rate in rates) / len(rates),
        }


def task_name(env: str, seed: int) -> str:
    return f"{env}:{seed}"
