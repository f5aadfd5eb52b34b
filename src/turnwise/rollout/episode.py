"""Run one episode of a token policy, from the first observation to the end."""

import time
from dataclasses import dataclass, field

from turnwise.core.errors import InfrastructureFailure
from turnwise.core.messages import Picture
from turnwise.core.protocols import Completion, Env, Session, StepResult
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Status, Trajectory, Turn
from turnwise.render.parse import ParsedAction
from turnwise.rollout.context import Context, ContextState
from turnwise.rollout.limits import EpisodeClock, Limits, timeout_cause

SUMMARY = StepResult(info={"summary": True})
"""Step result of a summary turn: the environment is not stepped and there is no reward."""


@dataclass(slots=True, kw_only=True)
class EpisodeBuilder:
    """Turns of an episode so far, so that a time limit keeps the finished ones."""

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
        )


async def run_episode(key: EpisodeKey, env: Env, session: Session, context: Context, limits: Limits) -> Trajectory:
    """Run an episode; truncate it if the agent's own sampling takes too long.

    If the environment takes too long, raise InfrastructureFailure: a tool, judge or hook that hangs must not count as a
    reward of 0 for the agent.
    """
    builder, clock = EpisodeBuilder(), EpisodeClock(session, limits.timeout_s)
    try:
        async with clock.limit():
            status = await _play(key.task.env, env, session, context, limits, builder, clock)
    except TimeoutError as error:
        if clock.expired is None:
            raise
        if clock.expired == "environment":
            raise InfrastructureFailure(
                f"Timed out after rollout.timeout_s {limits.timeout_s:g} s, waiting for {timeout_cause(error)}. "
                "Raise rollout.timeout_s if it needs longer."
            ) from error
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
    if not context.can_fit(opening.messages, limits.max_tokens):
        return Status.TRUNCATED_TOKENS
    pending = context.start(opening)
    while (status := limits.check(pending)).ongoing:
        completion = await session.generate(pending.ids, limits.turn_sampling(pending), restart=not pending.extends)
        parsed = context.parse(completion)
        step = SUMMARY if pending.is_summary else await clock.run_outside(env.step(parsed.message), env_name)
        turns.append(_turn(pending, completion, parsed, step))
        if step.over:
            return step.status
        if not context.can_fit(step.messages, limits.max_tokens):
            return Status.TRUNCATED_TOKENS
        pending = await clock.run_outside(context.next(pending, turns, step.messages), context.builder)
    return status


def _turn(pending: ContextState, completion: Completion, parsed: ParsedAction, step: StepResult) -> Turn:
    return Turn(
        context_ids=pending.ids,
        extends=pending.extends,
        action_ids=completion.ids,
        action_logprobs=completion.logprobs,
        temperature=completion.temperature,
        policy_versions=completion.policy_versions,
        values=completion.values,
        spans=parsed.spans,
        message=parsed.message,
        stop=completion.stop,
        reward=step.reward,
        invalid=step.invalid,
        info=step.info,
        picture=step.picture,
    )
