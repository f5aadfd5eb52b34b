"""One episode, from the first observation to its end."""

import asyncio

from turnwise.core.errors import InfrastructureFailure
from turnwise.core.protocols import Completion, Env, Session, StepResult
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Status, Trajectory, Turn
from turnwise.render.parse import Parsed
from turnwise.rollout.context import Context, Pending
from turnwise.rollout.limits import Limits, waited_for
from turnwise.rollout.played import Played

SUMMARY = StepResult(info={"summary": True})
"""What an aside comes to: nothing happens, and nothing is earned."""


async def run_episode(key: EpisodeKey, env: Env, session: Session, context: Context, limits: Limits) -> Trajectory:
    """Time that runs out while the agent speaks cuts the episode short; while its world is waited for, that has failed:
    a tool or a judge that hangs is never the agent's reward of 0.
    """
    played = Played()
    try:
        async with asyncio.timeout(limits.timeout_s):
            status = await _play(env, session, context, limits, played)
    except TimeoutError as error:
        if not played.speaking:
            late = f"{waited_for(error)} was waited for when rollout.timeout_s {limits.timeout_s:g} was over: raise it"
            raise InfrastructureFailure(late) from error
        status = Status.TRUNCATED_TIME
    return played.trajectory(key, status)


async def _play(env: Env, session: Session, context: Context, limits: Limits, played: Played) -> Status:
    opening, turns = await env.start(), played.turns
    played.start = opening.picture
    pending = context.start(opening)
    while (status := limits.check(pending)).ongoing:
        played.speaking = True
        completion = await session.generate(pending.ids, limits.turn_sampling(pending), restart=not pending.extends)
        played.speaking = False
        parsed = context.parse(completion)
        step = SUMMARY if pending.aside else await env.step(parsed.message)
        turns.append(_turn(pending, completion, parsed, step))
        if step.over:
            return step.status
        played.speaking = True  # a summary of what came before is the agent's own
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
