"""Settings of rollouts, their context, curriculum and self-play."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from turnwise.settings.needs import (
    FIXED_OPPONENT,
    GROUPS,
    IN_TURN,
    LOCAL_EPISODES,
    ONE_ENVIRONMENT,
    PLAYED,
    TWO_POLICIES,
    WHOLE_CONTEXT,
    Lack,
    Need,
)
from turnwise.settings.section import Idle, NonNegative, Positive, Section, Share


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
    """Seconds per episode for its sampling, and as many for its environment; waiting for others is not counted."""
    attempts: Positive = 3
    """Attempts per episode before it is dropped, if its environment or infrastructure fails; 3 means two retries."""
    trial_s: NonNegative = 30.0
    """Seconds for trial episodes in an environment of your own, before a model is loaded; 0 skips them."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature in training."""
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Steps that rollouts may run ahead of training, with weights as many versions old; 0 trains synchronously."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn, in addition to the model's end-of-turn token."""
    prefix: str = ""
    """Text that every answer starts with, such as "<think>"; neither sampled nor trained."""

    uses: ClassVar[Mapping[str, str | tuple[str, ...]]] = {"temperature": PLAYED, "trial_s": PLAYED}

    def needs(self) -> list[Need]:
        why, without = "rollout.max_staleness needs episodes that are played", "set rollout.max_staleness to 0"
        return [Need(PLAYED, why, without)] if self.max_staleness else []

    def lacks(self) -> dict[str, Lack]:
        lacks = {}
        if self.group_size < 2:
            fix = "set rollout.groups 32 and rollout.group_size 8"
            lacks[GROUPS] = Lack("rollout.group_size", "is 1", fix)
        if self.max_staleness:
            name = f"rollout.max_staleness {self.max_staleness}"
            lacks[IN_TURN] = Lack(name, "runs rollouts and updates side by side", "set rollout.max_staleness to 0")
        return lacks


class ContextConfig(Section):
    """Context of each turn: which earlier turns the model sees."""

    mode: Literal["full", "window", "turn", "summary"] = "full"
    """Earlier turns in the context: all, a sliding window, a memory written as text, or a summary when it is long."""
    turns: Annotated[int, Field(ge=0)] = 4
    """window: earlier turns kept besides the current one; turn: earlier turns in the memory."""
    slack: Annotated[int, Field(ge=0)] = 0
    """window: turns that it may grow beyond context.turns before it slides; a slide encodes it anew."""
    keep_opening: bool = False
    """window, turn, summary: keep the first observation, such as a question; else only the system message."""
    memory: Literal["exchanges", "actions"] = "exchanges"
    """turn: observations and actions in the memory, or actions only."""
    memory_chars: Positive = 2000
    """turn: maximum number of characters of the memory; the oldest turns are dropped first."""
    memory_rewards: bool = False
    """turn: include the environment's rewards, so that the model sees what it is trained on."""
    summary_at: Positive | None = None
    """summary: context length in tokens that triggers a summary; none uses half of rollout.max_tokens."""
    summary_every: Positive | None = None
    """summary: turns that trigger a summary at any length; none leaves it to summary_at."""
    summary_tokens: Positive = 128
    """summary: maximum number of sampled tokens of a summary."""
    summary_by: str = "model"
    """summary: "model", or FILE.py:function from the episode's messages to text."""
    summary_prompt: str = (
        "Your context will be cleared. Sum up for yourself what you need in order to go on: the goal, what you did and "
        "found, and your plan."
    )
    """summary: prompt for the model."""

    def lacks(self) -> dict[str, Lack]:
        only_part = Lack(f"context.mode {self.mode}", "is for environments", "leave out context.mode")
        return {} if self.mode == "full" else {WHOLE_CONTEXT: only_part}

    @property
    def shows_current_turn_only(self) -> bool:
        return self.mode == "turn" and self.turns == 0 and not self.keep_opening


class CurriculumConfig(Section):
    """Curriculum: training tasks drawn by how often they are solved."""

    pool: Annotated[int, Field(ge=0)] = 0
    """Training tasks per environment, drawn most often if solved sometimes; 0 disables the curriculum."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Probability of tasks always or never solved, relative to a task that is solved half of the time."""
    memory: Share = 0.5
    """Factor of a task's earlier results when it is played again, since the policy has changed."""

    def idle(self) -> Idle:
        return {} if self.pool else dict.fromkeys(("floor", "memory"), ("curriculum.pool 0", "raise curriculum.pool"))

    def needs(self) -> list[Need]:
        if not self.pool:
            return []
        without = "leave out curriculum.pool"
        return [
            Need(PLAYED, "curriculum.pool needs episodes that are played", without),
            Need(FIXED_OPPONENT, "curriculum.pool ranks tasks by how often they are solved", without),
        ]


class SelfPlayConfig(Section):
    """Self-play in two-player games."""

    opponent: Literal["none", "self", "past"] = "none"
    """Opponent in training: the game's script (none), the current policy, or a past one."""
    random_moves: Annotated[int, Field(ge=0)] = 0
    """Maximum number of random moves at the start of a game in training."""
    snapshot_every: Positive = 20
    """Steps between snapshots of the policy as opponents; the first is the initial policy."""
    snapshots: Positive = 4
    """Number of latest snapshots in use; past: each step's opponent is drawn from them."""
    ladder_games: Annotated[int, Field(ge=0)] = 32
    """Games of each new snapshot against each earlier one, for its Elo rating; 0 disables ratings."""

    def idle(self) -> Idle:
        others = ("random_moves", "snapshot_every", "snapshots", "ladder_games")
        needless = ("selfplay.opponent none", "choose self, past")
        return {} if self.is_used else dict.fromkeys(others, needless)

    @property
    def is_used(self) -> bool:
        return self.opponent != "none"

    def needs(self) -> list[Need]:
        if not self.is_used:
            return []
        name = f"selfplay.opponent {self.opponent}"
        frozen = self.opponent == "past" or self.ladder_games > 0
        alone = "choose selfplay.opponent self with selfplay.ladder_games 0"
        without = "set selfplay.opponent to none"
        return [
            Need(PLAYED, f"{name} needs episodes that are played", without),
            Need(IN_TURN, f"{name} chooses one opponent per step", without),
            Need(ONE_ENVIRONMENT, f"{name} trains one game", without),
            Need(LOCAL_EPISODES, f"{name} plays its matches in this process", without),
        ] + ([Need(TWO_POLICIES, f"{name} generates with two sets of weights", alone)] if frozen else [])

    def lacks(self) -> dict[str, Lack]:
        name = f"selfplay.opponent {self.opponent}"
        changing = Lack(name, "changes the opponent from step to step", "set selfplay.opponent to none")
        return {FIXED_OPPONENT: changing} if self.is_used else {}
