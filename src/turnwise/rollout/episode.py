"""One episode, from the first observation to its end."""

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
"""What an aside comes to: nothing happens, and nothing is earned."""


@dataclass(slots=True, kw_only=True)
class EpisodeBuilder:
    start: Picture | None = None
    turns: list[Turn] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def trajectory(self, key: EpisodeKey, status: Status) -> Trajectory:
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
    """The episode is cut short where the agent's own sampling takes too long. Where its world does, that has failed: a
    tool, a judge or a summary hook that hangs is never the agent's reward of 0.
    """
    played, clock = EpisodeBuilder(), EpisodeClock(session, limits.timeout_s)
    try:
        async with clock.limit():
            status = await _play(key.task.env, env, session, context, limits, played, clock)
    except TimeoutError as error:
        if clock.late is None:
            raise
        if clock.late == "world":
            late = (
                f"{timeout_cause(error)} was waited for when rollout.timeout_s {limits.timeout_s:g} was over: raise it"
            )
            raise InfrastructureFailure(late) from error
        status = Status.TRUNCATED_TIME
    return played.trajectory(key, status)


async def _play(
    name: str, env: Env, session: Session, context: Context, limits: Limits, played: EpisodeBuilder, clock: EpisodeClock
) -> Status:
    world, turns = f"the environment {name}", played.turns
    opening = await clock.outside(env.start(), world)
    played.start = opening.picture
    if not context.can_fit(opening.messages, limits.max_tokens):
        return Status.TRUNCATED_TOKENS
    pending = context.start(opening)
    while (status := limits.check(pending)).ongoing:
        completion = await session.generate(pending.ids, limits.turn_sampling(pending), restart=not pending.extends)
        parsed = context.parse(completion)
        step = SUMMARY if pending.aside else await clock.outside(env.step(parsed.message), world)
        turns.append(_turn(pending, completion, parsed, step))
        if step.over:
            return step.status
        if not context.can_fit(step.messages, limits.max_tokens):
            return Status.TRUNCATED_TOKENS
        pending = await clock.outside(context.next(pending, turns, step.messages), context.builder)
    return status


def _turn(pending: ContextState, completion: Completion, parsed: ParsedAction, step: StepResult) -> Turn:
    return Turn(
        context_ids=pending.ids,
        extends=pending.extends,
        action_ids=completion.ids,
        action_logprobs=completion.logprobs,
        temperature=completion.temperature,
        policy_versions=completion.policy_versions,
        spans=parsed.spans,
        message=parsed.message,
        stop=completion.stop,
        reward=step.reward,
        invalid=step.invalid,
        info=step.info,
        picture=step.picture,
    )
