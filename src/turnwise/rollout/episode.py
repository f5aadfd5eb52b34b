"""One episode, from the first observation to its end."""

import asyncio
import time
from collections.abc import Sequence

from turnwise.core.protocols import Completion, Env, Session, StepResult
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Status, Trajectory, Turn
from turnwise.render.parse import Parsed
from turnwise.rollout.context import Context, Pending
from turnwise.rollout.limits import Limits

SUMMARY = StepResult(info={"summary": True})
"""What an aside comes to: nothing happens, and nothing is earned."""


async def run_episode(key: EpisodeKey, env: Env, session: Session, context: Context, limits: Limits) -> Trajectory:
    began, turns = time.perf_counter(), list[Turn]()
    try:
        async with asyncio.timeout(limits.timeout_s):
            status = await _play(env, session, context, limits, turns)
    except TimeoutError:
        status = Status.TRUNCATED_TIME
    return _trajectory(key, turns, status, time.perf_counter() - began)


async def _play(env: Env, session: Session, context: Context, limits: Limits, turns: list[Turn]) -> Status:
    """Appends the turns as they are played, so that a time-out loses none."""
    pending = context.start(await env.start())
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


def _trajectory(key: EpisodeKey, turns: Sequence[Turn], status: Status, wall_s: float) -> Trajectory:
    return Trajectory(
        task=key.task,
        member=key.member,
        attempt=key.attempt,
        turns=tuple(turns),
        status=status,
        turn_rewards=tuple(turn.reward for turn in turns),
        timings={"wall_s": wall_s},
    )
