"""Settings of rollouts, of the source of a step's episodes, of the curriculum and of self-play."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from turnwise.rollout.opponents import OPPONENTS, Opponent, PolicyOpponent, Script
from turnwise.settings.choice import Choice, OneOf, choices
from turnwise.settings.needs import (
    FIXED_OPPONENT,
    GROUPS,
    IN_TURN,
    LOCAL_EPISODES,
    PLAYED,
    Lack,
    Need,
)
from turnwise.settings.section import Idle, NonNegative, Positive, Section


class SourceChoice(Choice):
    """A source, built in or of the user's own."""


class SourceSettings(SourceChoice):
    """Settings of a source.

    A source of your own, rollout.source FILE.py:Name, is a class derived from `tw.SourceSettings` with `build`.
    """

    @abstractmethod
    def build(self, run: Any) -> Any:
        """Return the user's `tw.Source`, given `tw.RunParts`."""

    def needs(self) -> list[Need]:
        return [Need(IN_TURN, f"rollout.source {self.kind} is asked for a step's episodes when the step begins")]


class AutoSource(SourceChoice, kind="auto"):
    """Plays episodes, ahead of the learner with rollout.max_staleness, or draws them from data.sources."""


SOURCES: dict[str, type[SourceChoice]] = choices(AutoSource)


RETRY_TEMPERATURE = 1.3
"""Sampling temperature of tasks that are played again; their log-probabilities are those at this temperature."""


class RolloutConfig(Section):
    """Rollouts: episodes per step, their limits, and sampling."""

    groups: Positive = 8
    """Tasks per step."""
    group_size: Positive = 16
    """Episodes per task."""
    in_flight: Positive = 256
    """Maximum number of episodes running at the same time."""
    max_new_tokens: Positive = 64
    """Maximum number of sampled tokens per turn."""
    max_tokens: Positive = 2048
    """Maximum number of tokens of an episode's context; the last turn's budget shrinks to fit."""
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Seconds per episode for sampling, and as many for the environment, without waiting. An agent: seconds in all."""
    attempts: Positive = 3
    """Attempts per episode before it is dropped, if its environment or infrastructure fails; 3 means two retries."""
    trial_s: NonNegative = 30.0
    """Seconds for trial episodes in an environment of your own, before a model is loaded; 0 skips them."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature in training."""
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Steps that rollouts may run ahead of training, with weights as many versions old; 0 trains synchronously."""
    source: Annotated[SourceChoice, OneOf(setting="rollout.source", table=SOURCES, base=SourceSettings)] = AutoSource()
    """Source of a step's episodes: auto plays them, ahead with max_staleness, or draws them from data.sources."""
    retry_unsolved: Annotated[int, Field(ge=0)] = 0
    """Times, at most, that a task is played again in the same step while no member of its group solved it."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn, in addition to the model's end-of-turn token."""
    prefix: str = ""
    """Text that every answer starts with, such as "<think>"; neither sampled nor trained."""

    uses: ClassVar[Mapping[str, str | tuple[str, ...]]] = {"temperature": PLAYED, "trial_s": PLAYED}

    def needs(self) -> list[Need]:
        why, without = "rollout.max_staleness needs episodes that are played", "set rollout.max_staleness to 0"
        needs = [Need(PLAYED, why, without)] if self.max_staleness else []
        return needs + (self._needs_of_retries() if self.retry_unsolved else [])

    def _needs_of_retries(self) -> list[Need]:
        without = "set rollout.retry_unsolved to 0"
        return [
            Need(PLAYED, "rollout.retry_unsolved plays tasks again", without),
            Need(GROUPS, "rollout.retry_unsolved looks for tasks that no member of a group solved", without),
            Need(FIXED_OPPONENT, "rollout.retry_unsolved looks for unsolved tasks", without),
            Need(LOCAL_EPISODES, "rollout.retry_unsolved plays at a temperature of its own", without),
        ]

    def lacks(self) -> dict[str, Lack]:
        lacks = {}
        if self.group_size < 2:
            fix = "set rollout.groups 32 and rollout.group_size 8"
            lacks[GROUPS] = Lack("rollout.group_size", "is 1", fix)
        if self.max_staleness:
            name = f"rollout.max_staleness {self.max_staleness}"
            lacks[IN_TURN] = Lack(name, "runs rollouts and updates side by side", "set rollout.max_staleness to 0")
        return lacks


class CurriculumConfig(Section):
    """Curriculum: training tasks drawn by how often they are solved."""

    pool: Annotated[int, Field(ge=0)] = 0
    """Training tasks per environment, drawn most often if solved sometimes; 0 disables the curriculum."""

    def needs(self) -> list[Need]:
        if not self.pool:
            return []
        without = "remove curriculum.pool"
        return [
            Need(PLAYED, "curriculum.pool needs episodes that are played", without),
            Need(FIXED_OPPONENT, "curriculum.pool ranks tasks by how often they are solved", without),
        ]


class SelfPlayConfig(Section):
    """Self-play in two-player games."""

    opponent: Annotated[Opponent, OneOf(setting="selfplay.opponent", table=OPPONENTS)] = Script()
    """Opponent in training: the game's script (none), the current policy, or a past one."""
    random_moves: Annotated[int, Field(ge=0)] = 0
    """Maximum number of random moves at the start of a game in training."""

    def idle(self) -> Idle:
        needless = ("selfplay.opponent none", "choose self, past")
        return {} if self.is_used else {"random_moves": needless}

    @property
    def is_used(self) -> bool:
        return isinstance(self.opponent, PolicyOpponent)
