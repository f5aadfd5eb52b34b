"""Judges of whole groups: each member against the rubric, all of them in one call, or two at a time.

Members that did the same get the same, and are asked for once; where all did the same there is nothing to compare.
Members come in an order that their own texts decide, so that no place in the group favours one.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import combinations
from typing import Self, TypeVar

from pydantic import model_validator

from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.protocols import RewardResult
from turnwise.core.random_streams import random_stream
from turnwise.core.trajectory import Group, Trajectory
from turnwise.rewards.judge import prompts
from turnwise.rewards.judge.client import JudgeClient
from turnwise.rewards.judge.prompts import (
    AGENT,
    Decode,
    Transcript,
    absolute_prompt,
    common_prefix_length,
    read_score,
    read_scores,
    read_winner,
    transcript_of_messages,
    transcript_of_trajectory,
)
from turnwise.rewards.judge.registry import bench_for
from turnwise.rewards.judge.settings import JudgeSettings
from turnwise.rewards.rubric import Submission, reference_answers, select_text

EVEN = 0.5
"""What members are worth that nothing tells apart."""
Found = TypeVar("Found")
Values = Mapping[Transcript, float | InfrastructureFailure]
"""What each is worth, or why there is no verdict on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJudge:
    """core.protocols.GroupReward; what a member is worth stands at its last turn."""

    settings: JudgeSettings
    bench: JudgeClient
    decode: Decode
    """Token ids as text: what the agent was shown is kept as ids alone."""

    async def __call__(self, group: Group) -> tuple[RewardResult | InfrastructureFailure, ...]:
        told = [transcript_of_trajectory(trajectory, self.decode) for trajectory in group.trajectories]
        values: Values = {(): 0.0, **await self._values(Counter(each for each in told if each))}
        self.bench.counts.left_out += sum(isinstance(values[each], InfrastructureFailure) for each in told)
        pairs = zip(group.trajectories, told, strict=True)
        return tuple(_at_the_end(member, values[each]) for member, each in pairs)

    async def _values(self, counted: Counter[Transcript]) -> Values:
        if len(counted) == 1 and self.settings.mode != "absolute":
            return dict.fromkeys(counted, EVEN)
        return await MODES[self.settings.mode](counted, self.settings, self.bench) if counted else {}


def _at_the_end(trajectory: Trajectory, value: float | InfrastructureFailure) -> RewardResult | InfrastructureFailure:
    if isinstance(value, InfrastructureFailure):
        return value
    zeros = (0.0,) * len(trajectory.turns)
    return RewardResult(turn_rewards=(*zeros[1:], value) if zeros else ())


async def absolute(counted: Counter[Transcript], settings: JudgeSettings, bench: JudgeClient) -> Values:
    """One that derails the judge takes no other with it."""

    async def score(member: Transcript) -> float | InfrastructureFailure:
        messages = prompts.absolute_prompt(member, "", "", settings)
        try:
            return await bench.ask(messages, lambda text: read_score(text, settings.scale))
        except InfrastructureFailure as failure:
            return failure

    found = dict(zip(counted, await _together([score(member) for member in counted]), strict=True))
    failures = [each for each in found.values() if isinstance(each, InfrastructureFailure)]
    if len(failures) == len(found):
        raise failures[0]
    return found


async def relative(counted: Counter[Transcript], settings: JudgeSettings, bench: JudgeClient) -> Values:
    prefix, members = _shuffled(counted)
    labels = [str(number) for number in range(1, len(members) + 1)]
    messages = prompts.relative_prompt(prefix, [member[len(prefix) :] for member in members], settings)
    scores = await bench.ask(messages, lambda text: read_scores(text, labels, settings.scale))
    return {member: scores[label] for member, label in zip(members, labels, strict=True)}


async def pairwise(counted: Counter[Transcript], settings: JudgeSettings, bench: JudgeClient) -> Values:
    """The share of comparisons that a member wins, a tie counting half. Every pair is asked for in both orders."""
    prefix, members = _shuffled(counted)
    pairs = _pairs(len(members), settings.opponents)
    own = [member[len(prefix) :] for member in members]
    asked = [
        bench.ask(prompts.pairwise_prompt(prefix, own[first], own[second], settings), read_winner)
        for one, other in pairs
        for first, second in ((one, other), (other, one))
    ]
    points = await _together(asked)
    met = [float(counted[member] - 1) for member in members]
    won = [EVEN * twins for twins in met]
    for (one, other), first, second in zip(pairs, points[::2], points[1::2], strict=True):
        share = (first + 1 - second) / 2  # of the one, over both orders
        for place, rival, value in ((one, other, share), (other, one, 1 - share)):
            won[place] += counted[members[rival]] * value
            met[place] += counted[members[rival]]
    return {member: won[place] / met[place] for place, member in enumerate(members)}


MODES: Mapping[str, Callable[[Counter[Transcript], JudgeSettings, JudgeClient], Awaitable[Values]]] = {
    "absolute": absolute,
    "relative": relative,
    "pairwise": pairwise,
}


def _shuffled(counted: Counter[Transcript]) -> tuple[Transcript, list[Transcript]]:
    """What all begin with, and the members in an order that depends on nothing but what they are."""
    members = sorted(counted)
    random_stream("judge", members).shuffle(members)
    return members[0][: common_prefix_length(members)], members


def _pairs(count: int, opponents: int) -> list[tuple[int, int]]:
    """All, or in a circle each with those next to it: as many for everyone."""
    reach = (opponents + 1) // 2
    if not reach or 2 * reach >= count - 1:
        return list(combinations(range(count), 2))
    return [(place, (place + step) % count) for step in range(1, reach + 1) for place in range(count)]


async def _together(asked: Sequence[Awaitable[Found]]) -> list[Found]:
    """One that fails ends the others: what they would find is of no use without it."""

    async def wait(each: Awaitable[Found]) -> Found:
        return await each

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wait(each)) for each in asked]
    except* (UserError, InfrastructureFailure) as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def skip_judges() -> Iterator[None]:
    """For play whose reward nobody reads, as the warm-up's: a judge would be paid for noise."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


class AnswerJudge(JudgeSettings):
    """A model's score for the answer, 0 to 1."""

    @model_validator(mode="after")
    def _alone(self) -> Self:
        if self.mode != "absolute":
            raise ValueError(f'mode = "{self.mode}" compares members of a group: put it into [reward] judges')
        return self

    async def __call__(self, answered: Submission) -> float:
        if _silent.get():
            return 0.0
        answer = ((AGENT, select_text(answered, "answer")),)
        shown = transcript_of_messages(answered.messages) if self.shows == "episode" and answered.messages else answer
        reference = "\nor: ".join(reference_answers(answered.row, self.against)) if self.against else ""
        messages = absolute_prompt(shown, answered.question, reference, self)
        return await bench_for(self).ask(messages, lambda text: read_score(text, self.scale))
