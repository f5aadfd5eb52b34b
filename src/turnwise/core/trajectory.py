"""Recorded episodes: turns, trajectories, groups."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from turnwise.core.constraint import Constraint
from turnwise.core.images import ImageSpan
from turnwise.core.messages import Message, Picture
from turnwise.core.task import Task


class Status(StrEnum):
    ONGOING = "ongoing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TRUNCATED_TURNS = "truncated_turns"
    TRUNCATED_TOKENS = "truncated_tokens"
    TRUNCATED_TIME = "truncated_time"
    TRUNCATED_LIMIT = "truncated_limit"
    """Imported episode that its own environment truncated, such as Minari's `truncations`."""

    @property
    def ongoing(self) -> bool:
        return self is Status.ONGOING

    @property
    def succeeded(self) -> bool:
        return self is Status.SUCCEEDED

    @property
    def cut_short(self) -> bool:
        """Truncated by a limit that the prompt does not state, so the value after the last token need not be 0.

        The prompt states the turn limit, which therefore counts as terminal.
        """
        return self in (Status.TRUNCATED_TOKENS, Status.TRUNCATED_TIME, Status.TRUNCATED_LIMIT)

    def continues(self, *, bootstrap: bool) -> bool:
        """Return whether the value after the last token counts. `bootstrap`: also in played episodes.

        It always does after the time limit of an imported episode, which its observations do not show (Pardo et al.
        2018, arXiv:1712.00378).
        """
        return self is Status.TRUNCATED_LIMIT or (bootstrap and self.cut_short)


class Stop(StrEnum):
    """Why generation of a turn stopped."""

    EOS = "eos"
    STRING = "string"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A named range [start, end) of a turn's action ids: "think", "answer", "call" or a section of the thinking.

    Sections ("observation", "reasoning", "prediction") come after the other spans of a turn, inside a "think".
    """

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn: the appended context, the sampled action and its reward.

    A trajectory of two turns with full history is one segment; the second turn extends the first:

        context_ids  action_ids | context_ids  action_ids
        s s s u u u  a a a      | u u u        a a
        0 0 0 0 0 0  1 1 1      | 0 0 0        1 1        <- loss mask
    """

    context_ids: tuple[int, ...]
    """Ids appended before the action: template scaffolding, prompt, observation."""
    extends: bool
    """True: appended to the previous turn's context. False: a new context starts here."""
    action_ids: tuple[int, ...]
    action_logprobs: tuple[float, ...]
    """Log-probabilities of the sampler at `temperature`, before top-p and top-k."""
    temperature: float
    spans: tuple[Span, ...]
    message: Message
    stop: Stop
    reward: float
    """Reward of the environment alone; `Trajectory.turn_rewards` are the ones that are optimised."""
    invalid: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    picture: Picture | None = None
    policy_versions: tuple[int, ...] = ()
    """Version of the weights that sampled each token; empty if unknown, as for endpoints and demonstrations."""
    values: tuple[float, ...] = ()
    """Critic's value before each sampled token, if the critic shares the policy's trunk; empty if unknown."""
    images: tuple[ImageSpan, ...] = ()
    """Images in `context_ids`, in order."""
    constraint: Constraint | None = None
    """Constraint that the action was sampled under. Log-probabilities are those among the tokens that it allows."""

    @property
    def is_summary(self) -> bool:
        """True if the model summarised its context: sampled and trained, but not an environment turn."""
        return self.info.get("summary") is True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Settings with which an episode's tokens were sampled."""

    temperature: float
    """0: greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""

    @property
    def is_exact(self) -> bool:
        """Whether tokens were drawn from the distribution of their log-probabilities, which greedy choices are not."""
        return self.temperature > 0 and self.top_p == 1 and self.top_k == 0

    def describe(self) -> str:
        """Return the settings in words, such as "at temperature 0.7 with top-p 0.9"."""
        limits = [f"top-p {self.top_p:g}"] * (self.top_p != 1) + [f"top-k {self.top_k}"] * (self.top_k != 0)
        chosen = f" with {' and '.join(limits)}" if limits else ""
        return "greedily" if self.temperature == 0 else f"at temperature {self.temperature:g}{chosen}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """An unbroken context: the turns that share one growing sequence of ids."""

    first_turn: int
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode: its turns, with the exact token ids, and its rewards."""

    task: Task
    """The task of the episode."""
    member: int
    """Number of the episode in its group."""
    attempt: int
    """Number of environment failures before this attempt."""
    turns: tuple[Turn, ...]
    """One turn per model call."""
    status: Status
    """End of the episode, such as "succeeded" or "failed"."""
    turn_rewards: tuple[float, ...]
    """Optimised reward of each turn: the environment's, or in trajectories that `rewards/` returns the combined one."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Total of each reward by name, before they are combined."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by name."""
    start: Picture | None = None
    """State before the first turn; a turn's picture shows the state after it."""
    sampler: Sampler | None = None
    """Sampling settings of its tokens; None if unknown, as for text that others wrote."""

    def __post_init__(self) -> None:
        if len(self.turn_rewards) != len(self.turns):
            raise ValueError(f"{len(self.turns)} turns but {len(self.turn_rewards)} turn rewards")

    @property
    def total_reward(self) -> float:
        """Sum of the optimised rewards."""
        return sum(self.turn_rewards)

    @property
    def num_sampled(self) -> int:
        """Number of sampled tokens."""
        return sum(len(turn.action_ids) for turn in self.turns)

    @property
    def never_acted(self) -> bool:
        """The episode was over before the agent's first turn."""
        return not self.turns and self.status is Status.FAILED

    @property
    def num_turns(self) -> int:
        """Number of environment turns; summaries do not count."""
        return sum(not turn.is_summary for turn in self.turns)

    @property
    def env_turn_ids(self) -> tuple[int, ...]:
        """Index of the environment turn that each turn belongs to, which is the turn id in advantages.

        turns     e s e e s e s     environment turns (e) and summaries (s)
        numbers   0 1 1 2 3 3 3     a summary and the environment turn that follows it are one decision

        A summary at the end of an episode belongs to the last environment turn.
        """
        numbers, done, last = [], 0, max(0, self.num_turns - 1)
        for turn in self.turns:
            numbers.append(min(done, last))
            done += not turn.is_summary
        return tuple(numbers)

    def segments(self) -> Iterator[Segment]:
        """Yield the unbroken contexts in order."""
        start = 0
        for index in range(1, len(self.turns) + 1):
            if index == len(self.turns) or not self.turns[index].extends:
                yield Segment(first_turn=start, turns=self.turns[start:index])
                start = index


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories of one task from one start state: the unit of relative advantages and filters."""

    task: Task
    """Task that all of them share."""
    trajectories: tuple[Trajectory, ...]
    """The members that did not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenName:
    """Text of a token, for readers without the tokenizer."""

    id: int
    text: str
    """Incomplete UTF-8 bytes are escaped as \\xe4."""
    special: bool
