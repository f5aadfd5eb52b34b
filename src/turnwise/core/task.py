"""What is drawn: a task; and who runs it: an episode key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from turnwise.core.random_streams import address

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The unit that mixtures and curricula draw. `params` holds plain JSON values."""

    env: str
    seed: int
    split: Split = "train"
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[Any, ...]:
        """What random streams of this task are addressed by: its start state depends on nothing else."""
        return (self.env, dict(self.params), self.split, self.seed)


@dataclass(frozen=True, kw_only=True)
class EpisodeKey:
    """Names one episode of a run. `round` is the training step, so that a task drawn again meets fresh samples."""

    run_seed: int
    round: int
    task: Task
    member: int = 0
    attempt: int = 0

    @cached_property
    def address(self) -> int:
        """What the episode's sampled tokens are addressed by."""
        return address("sample", self.run_seed, self.round, self.task.parts, self.member, self.attempt)
