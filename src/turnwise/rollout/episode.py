"""One episode, from the first observation to its end."""

import asyncio

from turnwise.core.protocols import Completion, Env, Session, StepResult
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Status, Trajectory, Turn
from turnwise.render.parse import Parsed
from turnwise.rollout.context import Context, Pending
from turnwise.rollout.limits import Limits
from turnwise.rollout.played import Played

SUMMARY = StepResult(info={"summary": True})
"""What an aside comes to: nothing happens, and nothing is earned."""


async def run_episode(key: EpisodeKey, env: Env, session: Session, context: Context, limits: Limits) -> Trajectory:
    played = Played()
    try:
        async with asyncio.timeout(limits.timeout_s):
            status = await _play(env, session, context, limits, played)
    except TimeoutError:
        status = Status.TRUNCATED_TIME
    return played.trajectory(key, status)


async def _play(env: Env, session: Session, context: Context, limits: Limits, played: Played) -> Status:
    opening, turns = await env.start(), played.turns
    played.start = opening.picture
    pending = context.start(opening)
    while (status := limits.check(pending)).ongoing:
        completion = await session.generate(pending.ids, limits.turn_sampling(pending), restart=not pending.extends)
        parsed = context.parse(completion)
        step = SUMMARY if pending.aside else await env.step(parsed.message)
        turns.append(_turn(pending, completion, parsed, step))
        if step.over:
            return step.status
        pending = await context.next(pending, turns, step.messages)
    return status


def _turn(pending: Pending, completion: Completion, parsed: Parsed, step: StepResult) -> Turn:
    return Turn(
        context_ids=pending.ids,
        extends=pending.extends,
        action_ids=completion.ids,
        action_logprobs=completion.logprobs,
        temperature=completion.temperature,
        policy_version=completion.policy_version,
        spans=parsed.spans,
        message=parsed.message,
        stop=completion.stop,
        reward=step.reward,
        invalid=step.invalid,
        info=step.info,
        picture=step.picture,
    )
