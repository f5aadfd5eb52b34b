"""Rewards that a judge gives: of one answer (a part of a rubric), of a description of a state, or of the members of a
group (`reward.judges`).

A group is judged member by member (absolute), all members in one call (relative), or two at a time (pairwise).
Members with equal transcripts get equal rewards and are judged once; a group of equal members costs no call. The order
of the members depends only on their transcripts, so that no index in the group has an advantage.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Generic, Self, TypeVar

from pydantic import Field, model_validator

from turnwise.concurrency.context_values import set_in_block
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.messages import Message
from turnwise.core.protocols import RewardResult
from turnwise.core.random_streams import random_stream
from turnwise.core.trajectory import Group, Trajectory
from turnwise.rewards.judge.client import JudgeClient
from turnwise.rewards.judge.prompts import (
    AGENT,
    Decode,
    Transcript,
    absolute_prompt,
    common_prefix_length,
    pairwise_prompt,
    read_score,
    read_scores,
    read_winner,
    relative_prompt,
    state_prompt,
    transcript_of_messages,
    transcript_of_trajectory,
)
from turnwise.rewards.judge.settings import JudgeSettings
from turnwise.rewards.rubric import StateDescription, Submission, reference_answers, select_text

TIE = 0.5
"""Reward of members that are equal."""
Result = TypeVar("Result")
Subject = TypeVar("Subject")
Rewards = Mapping[Transcript, float | InfrastructureFailure]
"""Reward of each transcript, or why it has no verdict."""

_judges_skipped: ContextVar[bool] = ContextVar("judges_skipped", default=False)


def skip_judges() -> AbstractContextManager[None]:
    """Let judges of answers and states score 0 unasked, for episodes whose rewards are not used (warm-up)."""
    return set_in_block(_judges_skipped, True)


class AnswerJudgeSettings(JudgeSettings):
    """Options of a judge that is a part of a rubric."""

    @model_validator(mode="after")
    def _is_absolute(self) -> Self:
        if self.mode != "absolute":
            raise ValueError(f'mode = "{self.mode}" compares members of a group: put it into [reward] judges')
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreJudge(ABC, Generic[Subject]):
    """A judge that scores one thing, 0 to 1."""

    settings: JudgeSettings
    client: JudgeClient

    async def __call__(self, subject: Subject, /) -> float:
        if _judges_skipped.get():
            return 0.0
        return await self.client.ask(self.prompt(subject), lambda text: read_score(text, self.settings.scale))

    @abstractmethod
    def prompt(self, subject: Subject) -> list[Message]:
        """Return the messages that ask for the score."""


class AnswerJudge(ScoreJudge[Submission]):
    """A part of a rubric: the judge's score of an answer."""

    def prompt(self, submission: Submission) -> list[Message]:
        settings = self.settings
        transcript: Transcript = ((AGENT, select_text(submission, "answer")),)
        if settings.shows == "episode" and submission.messages:
            transcript = transcript_of_messages(submission.messages)
        accepted = reference_answers(submission.row, settings.against) if settings.against else []
        return absolute_prompt(transcript, submission.question, "\nor: ".join(accepted), settings)


class StateJudgeSettings(JudgeSettings):
    """Options of a judge of descriptions and predictions of states."""

    rubric: Annotated[str, Field(min_length=1)] = (
        "states everything that is shown and matters for acting, and nothing that is not shown"
    )
    """Criterion in plain words."""

    @model_validator(mode="after")
    def _has_no_answer(self) -> Self:
        unused = [name for name in ("mode", "shows", "against") if name in self.model_fields_set]
        if unused:
            raise ValueError(f"{unused[0]} has no effect: the judge always sees one description and the observation")
        return self


class StateJudge(ScoreJudge[StateDescription]):
    """The judge's score of a described or predicted state."""

    def prompt(self, description: StateDescription) -> list[Message]:
        return state_prompt(description, self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJudge:
    """A `core.protocols.GroupReward`. A member's reward is given to its last turn."""

    settings: JudgeSettings
    client: JudgeClient
    decode: Decode
    """Token ids to text: trajectories store observations as token ids."""

    async def __call__(self, group: Group) -> tuple[RewardResult | InfrastructureFailure, ...]:
        transcripts = [transcript_of_trajectory(trajectory, self.decode) for trajectory in group.trajectories]
        rewards: Rewards = {
            (): 0.0,
            **await self._judge(Counter(transcript for transcript in transcripts if transcript)),
        }
        self.client.counts.left_out += sum(
            isinstance(rewards[transcript], InfrastructureFailure) for transcript in transcripts
        )
        members = zip(group.trajectories, transcripts, strict=True)
        return tuple(_at_last_turn(member, rewards[transcript]) for member, transcript in members)

    async def _judge(self, counts: Counter[Transcript]) -> Rewards:
        if len(counts) == 1 and self.settings.mode != "absolute":
            return dict.fromkeys(counts, TIE)
        return await MODES[self.settings.mode](counts, self.settings, self.client) if counts else {}


def _at_last_turn(
    trajectory: Trajectory, reward: float | InfrastructureFailure
) -> RewardResult | InfrastructureFailure:
    if isinstance(reward, InfrastructureFailure):
        return reward
    zeros = (0.0,) * len(trajectory.turns)
    return RewardResult(turn_rewards=(*zeros[1:], reward) if zeros else ())


async def judge_absolute(counts: Counter[Transcript], settings: JudgeSettings, client: JudgeClient) -> Rewards:
    """Score each member alone. A member for which the judge gives no verdict does not affect the others."""

    async def score(member: Transcript) -> float | InfrastructureFailure:
        messages = absolute_prompt(member, "", "", settings)
        try:
            return await client.ask(messages, lambda text: read_score(text, settings.scale))
        except InfrastructureFailure as failure:
            return failure

    rewards = dict(zip(counts, await _gather([score(member) for member in counts]), strict=True))
    failures = [reward for reward in rewards.values() if isinstance(reward, InfrastructureFailure)]
    if len(failures) == len(rewards):
        raise failures[0]
    return rewards


async def judge_relative(counts: Counter[Transcript], settings: JudgeSettings, client: JudgeClient) -> Rewards:
    """Score all members in one call."""
    prefix, members = _shuffle(counts)
    labels = [str(number) for number in range(1, len(members) + 1)]
    messages = relative_prompt(prefix, [member[len(prefix) :] for member in members], settings)
    scores = await client.ask(messages, lambda text: read_scores(text, labels, settings.scale))
    return {member: scores[label] for member, label in zip(members, labels, strict=True)}


async def judge_pairwise(counts: Counter[Transcript], settings: JudgeSettings, client: JudgeClient) -> Rewards:
    """Return the share of comparisons that a member wins; a tie counts half. Each pair is judged in both orders."""
    prefix, members = _shuffle(counts)
    pairs = _pairs(len(members), settings.opponents)
    rest = [member[len(prefix) :] for member in members]
    requests = [
        client.ask(pairwise_prompt(prefix, rest[first], rest[second], settings), read_winner)
        for one, other in pairs
        for first, second in ((one, other), (other, one))
    ]
    points = await _gather(requests)
    met = [float(counts[member] - 1) for member in members]
    won = [TIE * duplicates for duplicates in met]
    for (one, other), first, second in zip(pairs, points[::2], points[1::2], strict=True):
        share = (first + 1 - second) / 2  # of `one`, over both orders
        for index, opponent, value in ((one, other, share), (other, one, 1 - share)):
            won[index] += counts[members[opponent]] * value
            met[index] += counts[members[opponent]]
    return {member: won[index] / met[index] for index, member in enumerate(members)}


MODES: Mapping[str, Callable[[Counter[Transcript], JudgeSettings, JudgeClient], Awaitable[Rewards]]] = {
    "absolute": judge_absolute,
    "relative": judge_relative,
    "pairwise": judge_pairwise,
}


def _shuffle(counts: Counter[Transcript]) -> tuple[Transcript, list[Transcript]]:
    """Return the common prefix, and the members in an order that depends on nothing but their transcripts."""
    members = sorted(counts)
    random_stream("judge", members).shuffle(members)
    return members[0][: common_prefix_length(members)], members


def _pairs(count: int, opponents: int) -> list[tuple[int, int]]:
    """Return all pairs, or, with `opponents`, those of neighbours on a circle: equally many for each member."""
    reach = (opponents + 1) // 2
    if not reach or 2 * reach >= count - 1:
        return list(combinations(range(count), 2))
    return [(index, (index + step) % count) for step in range(1, reach + 1) for index in range(count)]


async def _gather(awaitables: Sequence[Awaitable[Result]]) -> list[Result]:
    """Await all; the first failure cancels the others, since the results are of no use without it."""

    async def wait(awaitable: Awaitable[Result]) -> Result:
        return await awaitable

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wait(awaitable)) for awaitable in awaitables]
    except* (UserError, InfrastructureFailure) as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
