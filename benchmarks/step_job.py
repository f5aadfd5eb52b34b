"""The job of both sides of step_cpu.py and step_gpu.py: tasks, environment, rewards and settings.

Imports neither turnwise's engine nor torch, because TRL's process has other packages installed.
"""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from turnwise.core.messages import Message, assistant
from turnwise.core.task import Task
from turnwise.envs.frozen_lake.env import FrozenLake
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import Outcome, goes_on
from turnwise.rollout.tasks import EnvMixEntry, TaskSource

Result = TypeVar("Result")


class PayingLake(FrozenLake):
    """Walk over the ice to the goal. A hole ends the game."""

    max_actions = None

    def step(self, action: str) -> Outcome:
        """Same board, moves and rewards, but the episode always lasts until its last turn."""
        outcome = super().step(action)
        return goes_on(outcome.text, outcome.reward)


SPEC = EnvSpec(name="paying_lake", id="", cls=PayingLake)
PARAMS = {"size": 4, "slippery": False, "max_turns": 5, "max_actions_per_turn": 1}
"""Parameters of the recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One step: `groups` x `group_size` episodes of `turns` turns of `new_tokens` sampled tokens, then `updates`
    optimizer steps over as many parts of them."""

    model: str
    """Model folder."""
    device: str = "cpu"
    vllm: bool = False
    """TRL samples with vLLM in its own process instead of `generate`."""
    groups: int = 8
    group_size: int = 16
    turns: int = 5
    new_tokens: int = 16
    updates: int = 1
    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    entropy_coef: float = 0.001
    """Not 0, so that no side can skip episodes whose advantage is 0."""
    format_penalty: float = 0.1

    @property
    def episodes(self) -> int:
        return self.groups * self.group_size

    @property
    def mini_batch(self) -> int:
        return self.episodes // self.updates

    def source(self) -> TaskSource:
        return TaskSource(mix=(EnvMixEntry(env=SPEC.name, params=SPEC.check_params(PARAMS)),), run_seed=0)

    def tasks(self, number: int) -> list[Task]:
        return self.source().draw(number, self.groups)


class Game:
    """One episode without asyncio: these environments never suspend."""

    def __init__(self, task: Task, member: int, format_penalty: float) -> None:
        self._env, self._format_penalty = SPEC.make(task, member), format_penalty
        self.opening: tuple[Message, ...] = run_coroutine(self._env.start()).messages
        self.reward = 0.0

    def play(self, text: str) -> str:
        """Play one turn and return the next observation."""
        result = run_coroutine(self._env.step(assistant(text)))
        self.reward += result.reward - (self._format_penalty if result.invalid else 0.0)
        return result.messages[0].content


def run_coroutine(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    raise RuntimeError("the environment suspended")
