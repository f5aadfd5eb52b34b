"""Run one episode of a chat model that exchanges messages, such as an endpoint.

Its turns have no token ids and cannot be trained on. A turn's `info` holds, besides the environment's own entries:

    chat_messages   messages appended before the model's reply, as role and content
    chat_usage      the endpoint's token counts and number of retries
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from turnwise.concurrency.blocking import blocking_limit, interruptible
from turnwise.concurrency.context_values import set_in_block
from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.images import ImageSpan
from turnwise.core.messages import ImagePart, Message, ToolSpec
from turnwise.core.protocols import Env, MakeEnv, Sampling, StepResult
from turnwise.core.random_streams import address
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Status, Trajectory, Turn
from turnwise.engine.openai.endpoint import ContextLengthError
from turnwise.engine.openai.messages import Reply
from turnwise.pictures.image_store import ImageStore
from turnwise.rollout.clock import timeout_cause
from turnwise.rollout.context import EMPTY_OBSERVATION
from turnwise.rollout.episode import EpisodeBuilder, Limits
from turnwise.rollout.failures import creation_boundary, guard_env

MESSAGES_KEY, USAGE_KEY = "chat_messages", "chat_usage"


SEEDS = 2**31


CHARS_PER_TOKEN = 4
"""Estimate for endpoints that report no token counts."""


Found = TypeVar("Found")


class ChatModel(Protocol):
    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, seed: int
    ) -> Reply: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRunner:
    chat: ChatModel
    make_env: MakeEnv
    limits: Limits
    images: ImageStore = field(default_factory=ImageStore)
    """Keeps the images of the episodes' messages."""

    async def episode(self, key: EpisodeKey) -> Trajectory:
        with creation_boundary():
            env = self.make_env(key.task, key.member, key.attempt)
        async with guard_env(env, self.limits.timeout_s) as guarded:
            return await run_chat_episode(key, guarded, self.chat, self.limits, self.images)


async def run_chat_episode(
    key: EpisodeKey, env: Env, chat: ChatModel, limits: Limits, images: ImageStore
) -> Trajectory:
    """Run an episode. The time limit covers the environment only: a slow endpoint is not the agent's fault."""
    builder = EpisodeBuilder(sampler=limits.sampling.sampler)
    with set_in_block(blocking_limit, limits.timeout_s):
        status = await _play(key, env, chat, limits, builder, images)
    return builder.build(key, status)


async def _play(
    key: EpisodeKey, env: Env, chat: ChatModel, limits: Limits, builder: EpisodeBuilder, images: ImageStore
) -> Status:
    opening, turns = await _in_time(env.start(), limits), builder.turns
    builder.start = opening.picture
    history, new_messages = list[Message](), opening.messages
    used = 0
    while used < limits.max_tokens:
        history += new_messages
        sampling = replace(limits.sampling, max_tokens=min(limits.sampling.max_tokens, limits.max_tokens - used))
        try:
            reply = await chat.reply(history, opening.tools, sampling, address("chat", key.address, len(turns)) % SEEDS)
        except ContextLengthError as full:
            if not turns:
                raise UserError(f"The first observation is too long for this model: {full}") from full
            return Status.TRUNCATED_TOKENS
        step = await _in_time(env.step(reply.message), limits)
        seen = tuple(image_span(part, images) for message in new_messages for part in message.images)
        turns.append(_turn(new_messages, reply, step, sampling, images=seen, extends=bool(turns)))
        if step.over:
            return step.status
        history.append(reply.message)
        new_messages = step.messages or (EMPTY_OBSERVATION,)
        used = _used(reply, history)
    return Status.TRUNCATED_TOKENS


async def _in_time(step: Awaitable[Found], limits: Limits) -> Found:
    try:
        async with asyncio.timeout(limits.timeout_s):
            return await interruptible(step, limits.timeout_s, "the environment")
    except TimeoutError as error:
        raise EnvironmentFailure(
            f"{timeout_cause(error)} took longer than rollout.timeout_s {limits.timeout_s:g} s"
        ) from error


def _used(reply: Reply, history: Sequence[Message]) -> int:
    """Tokens of the conversation so far. Reasoning is not sent back, so it is not part of it."""
    if reply.prompt_tokens is None or reply.sampled_tokens is None:
        return sum(len(message.content) for message in history) // CHARS_PER_TOKEN
    return reply.prompt_tokens + max(0, reply.sampled_tokens - reply.reasoning_tokens)


def image_span(part: ImagePart, images: ImageStore) -> ImageSpan:
    """Keep an image; return a reference without a range of ids, which the messages of endpoints do not have."""
    return ImageSpan(hash=images.put(part.data), start=0, end=0)


def _turn(
    new_messages: Sequence[Message],
    reply: Reply,
    step: StepResult,
    sampling: Sampling,
    *,
    images: tuple[ImageSpan, ...],
    extends: bool,
) -> Turn:
    return Turn(
        context_ids=(),
        extends=extends,
        action_ids=(),
        action_logprobs=(),
        temperature=sampling.temperature,
        spans=(),
        message=reply.message,
        stop=reply.stop,
        reward=step.reward,
        invalid=step.invalid,
        info={**step.info, MESSAGES_KEY: [_heard(message) for message in new_messages], USAGE_KEY: _usage(reply)},
        picture=step.picture,
        images=images,
    )


def _heard(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "sampled_tokens": reply.sampled_tokens,
        "retries": reply.retries,
    }


def count_sampled_tokens(trajectory: Trajectory) -> int | None:
    """Return the number of tokens that the model sampled; None if an endpoint did not report it."""
    counts = [turn.info[USAGE_KEY]["sampled_tokens"] for turn in trajectory.turns if is_chat_turn(turn)]
    return None if None in counts else trajectory.num_sampled + sum(counts)


def is_chat_turn(turn: Turn) -> bool:
    """Return True for a turn of a chat model, which has no token ids."""
    return not turn.action_ids and USAGE_KEY in turn.info
