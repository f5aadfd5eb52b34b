"""Run one episode of a token policy, from the first observation to the end."""

import time
from dataclasses import dataclass, field, replace

from turnwise.core.images import find_images
from turnwise.core.messages import Picture
from turnwise.core.protocols import Completion, Env, Sampling, Session, StepResult
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Sampler, Status, Trajectory, Turn
from turnwise.render.parse import ParsedAction
from turnwise.rollout.clock import EpisodeClock
from turnwise.rollout.context import Context, ContextState

SUMMARY = StepResult(info={"summary": True})
"""Step result of a summary turn: the environment is not stepped and there is no reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of an episode in tokens and time. Limits in turns and actions belong to the environment."""

    sampling: Sampling
    """Sampling of each turn; `max_tokens` is the limit per turn."""
    max_tokens: int
    """Longest context, in tokens. Contexts that restart may never reach it: then the environment's own limit or
    `timeout_s` ends the episode."""
    timeout_s: float
    """Limit in seconds for the agent's sampling and, separately, for everything else; see `EpisodeClock`."""

    def check(self, pending: ContextState) -> Status:
        return Status.ONGOING if pending.context_length < self.max_tokens else Status.TRUNCATED_TOKENS

    def turn_sampling(self, pending: ContextState) -> Sampling:
        """Return the sampling parameters of the next turn, with `max_tokens` reduced to what the context has left."""
        most = self.sampling.max_tokens if pending.max_new_tokens is None else pending.max_new_tokens
        most = min(most, self.max_tokens - pending.context_length)
        return self.sampling if most == self.sampling.max_tokens else replace(self.sampling, max_tokens=most)


@dataclass(slots=True, kw_only=True)
class EpisodeBuilder:
    """Turns of an episode so far, so that a time limit keeps the finished ones."""

    sampler: Sampler
    start: Picture | None = None
    turns: list[Turn] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def build(self, key: EpisodeKey, status: Status) -> Trajectory:
        return Trajectory(
            task=key.task,
            member=key.member,
            attempt=key.attempt,
            turns=tuple(self.turns),
            status=status,
            turn_rewards=tuple(turn.reward for turn in self.turns),
            timings={"wall_s": time.perf_counter() - self.began},
            start=self.start,
            sampler=self.sampler,
        )


async def run_episode(key: EpisodeKey, env: Env, session: Session, context: Context, limits: Limits) -> Trajectory:
    """Run an episode; truncate it if the agent's own sampling takes too long.

    If the environment takes too long, raise InfrastructureFailure: a tool, judge or hook that hangs must not count as a
    reward of 0 for the agent.
    """
    builder = EpisodeBuilder(sampler=limits.sampling.sampler)
    clock = EpisodeClock(session, limits.timeout_s, watched=key.task.env)
    try:
        async with clock.limit():
            status = await _play(key.task.env, env, session, context, limits, builder, clock)
    except TimeoutError as error:
        if clock.expired is None:
            raise
        if clock.expired == "environment":
            raise clock.describe_timeout(error) from error
        status = Status.TRUNCATED_TIME
    return builder.build(key, status)


async def _play(
    name: str,
    env: Env,
    session: Session,
    context: Context,
    limits: Limits,
    builder: EpisodeBuilder,
    clock: EpisodeClock,
) -> Status:
    env_name, turns = f"the environment {name}", builder.turns
    opening = await clock.run_outside(env.start(), env_name)
    builder.start = opening.picture
    if opening.over:
        return Status.FAILED
    if not context.can_fit(opening.messages, limits.max_tokens):
        return Status.TRUNCATED_TOKENS
    pending = context.start(opening)
    while (status := limits.check(pending)).ongoing:
        completion = await session.generate(pending.ids, limits.turn_sampling(pending), restart=not pending.extends)
        parsed = context.parse(completion)
        step = SUMMARY if pending.is_summary else await clock.run_outside(env.step(parsed.message), env_name)
        turns.append(build_turn(pending.ids, pending.extends, completion, parsed, step))
        if step.over:
            return step.status
        if not context.can_fit(step.messages, limits.max_tokens):
            return Status.TRUNCATED_TOKENS
        pending = await clock.run_outside(context.next(pending, turns, step.messages), context.builder)
    return status


def build_turn(
    context_ids: tuple[int, ...], extends: bool, completion: Completion, parsed: ParsedAction, step: StepResult
) -> Turn:
    return Turn(
        context_ids=context_ids,
        extends=extends,
        action_ids=completion.ids,
        action_logprobs=completion.logprobs,
        temperature=completion.temperature,
        policy_versions=completion.policy_versions,
        constraint=completion.constraint,
        values=completion.values,
        spans=parsed.spans,
        message=parsed.message,
        stop=completion.stop,
        reward=step.reward,
        invalid=step.invalid,
        info=step.info,
        picture=step.picture,
        images=find_images(context_ids) if min(context_ids, default=0) < 0 else (),
    )
