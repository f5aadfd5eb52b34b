"""Tasks and episode keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from turnwise.core.random_streams import address

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """An environment, its parameters, a seed and a split. `params` holds plain JSON values."""

    env: str
    """Name of the environment."""
    seed: int
    """Determines the start state. Different in each split."""
    split: Split = "train"
    """Training, validation or test tasks."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Values of `env.params`, checked and with their defaults."""

    def as_role(self, role: str) -> "Task":
        """Return the same task for one role of its environment. The roles' tasks differ in nothing else."""
        return replace(self, params={**self.params, "role": role})

    @property
    def label(self) -> str:
        """Name of the environment, with the role if the task is that of one role: "offer:proposer"."""
        role = self.params.get("role")
        return f"{self.env}:{role}" if role else self.env

    @property
    def parts(self) -> tuple[Any, ...]:
        """Address of the task's random streams. The start state depends on nothing else."""
        return (self.env, dict(self.params), self.split, self.seed)


@dataclass(frozen=True, kw_only=True)
class EpisodeKey:
    """Identifies one episode of a run. `round` is the training step, so a task drawn again gets new samples."""

    run_seed: int
    round: int
    task: Task
    member: int = 0
    attempt: int = 0
    branch: int = 0
    """Further contexts of an episode, such as those of sub-agents, sample with random streams of their own."""

    @cached_property
    def address(self) -> int:
        """Address of the episode's sampled tokens."""
        branch = (self.branch,) if self.branch else ()
        return address("sample", self.run_seed, self.round, self.task.parts, self.member, self.attempt, *branch)
