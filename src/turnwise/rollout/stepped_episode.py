"""An episode whose turns are taken one at a time, by the policy or by a person.

    episode = SteppedEpisode(env=env, session=session, context=context, limits=limits, renderer=renderer)
    await episode.start()
    await episode.sample()                                  the policy replies, and the environment is stepped
    await episode.reply("<answer>up</answer>")              a person replies in its place

Without an environment it is a conversation, whose observations a person writes with `say`.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import TypeVar

from turnwise.concurrency.blocking import blocking_limit, interruptible
from turnwise.concurrency.context_values import set_in_block
from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import Message
from turnwise.core.protocols import Completion, Env, Observation, Session, StepResult
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Status, Stop, Trajectory
from turnwise.render.renderer import Renderer
from turnwise.rollout.clock import timeout_cause
from turnwise.rollout.context import Context, ContextState
from turnwise.rollout.episode import SUMMARY, EpisodeBuilder, Limits, build_turn

BY_HAND = "by_hand"
"""Entry of `Turn.info` for a reply that a person wrote."""

Found = TypeVar("Found")


class SteppedEpisode:
    """One episode. It may run as long as it likes; each call of the environment has the time limit of an episode."""

    def __init__(
        self,
        *,
        env: Env | None,
        session: Session,
        context: Context,
        limits: Limits,
        renderer: Renderer,
        prefix: str = "",
    ) -> None:
        """`prefix`: start of every reply, as rollout.prefix; a person's reply need not repeat it."""
        self._env, self._session, self._context, self._limits = env, session, context, limits
        self._renderer, self._prefix = renderer, prefix
        self._builder = EpisodeBuilder(sampler=limits.sampling.sampler)
        self._unsent: tuple[int, ...] = ()
        """Ids of a person's turns that the session has not read yet."""
        self._restarts = True
        """The session has to drop its context before it reads further ids."""
        self._last: ContextState | None = None
        """Last context that was built."""
        self.pending: ContextState | None = None
        """Context that the next reply answers; None after the end, and while a conversation waits for `say`."""
        self.status = Status.ONGOING

    @property
    def has_started(self) -> bool:
        """Whether there was anything to reply to."""
        return self._last is not None

    async def start(self) -> None:
        if self._env is None:
            return
        opening = await self._in_time(self._env.start(), "the environment")
        self._builder.start = opening.picture
        self._open(opening)

    async def say(self, messages: Sequence[Message]) -> None:
        """Continue a conversation with messages to the model."""
        if self._env is not None or self.pending is not None:
            raise UserError("It is the model's turn. Let it reply first.")
        self._check_ongoing()
        if self._last is None:
            self._open(Observation(messages=tuple(messages)))
        else:
            await self._observe(messages)

    async def sample(self) -> None:
        """Let the policy take the next turn."""
        pending = self._next()
        ids = (*self._unsent, *pending.ids)
        completion = await self._session.generate(ids, self._limits.turn_sampling(pending), restart=self._restarts)
        self._unsent, self._restarts = (), False
        await self._take(pending, completion, by_hand=False)

    async def reply(self, text: str) -> None:
        """Take the next turn with a reply that a person wrote, in the model's format."""
        pending = self._next()
        ids = tuple(self._renderer.answer(self._with_prefix(text)))
        if pending.context_length + len(ids) > self._limits.max_tokens:
            raise UserError(
                f"The reply has {len(ids)} tokens, and the context has space for "
                f"{self._limits.max_tokens - pending.context_length} (rollout.max_tokens). Write a shorter one."
            )
        completion = Completion(ids=ids, logprobs=(), stop=Stop.EOS, temperature=self._limits.sampling.temperature)
        self._unsent = (*self._unsent, *pending.ids, *ids)
        await self._take(pending, completion, by_hand=True)

    def build(self, key: EpisodeKey) -> Trajectory:
        return self._builder.build(key, self.status)

    def _open(self, opening: Observation) -> None:
        if not self._context.can_fit(opening.messages, self._limits.max_tokens):
            self.status = Status.TRUNCATED_TOKENS
            return
        self._wait_for(self._context.start(opening))

    def _wait_for(self, pending: ContextState) -> None:
        self._last, self.status = pending, self._limits.check(pending)
        self.pending = pending if self.status.ongoing else None
        if not pending.extends:
            self._unsent, self._restarts = (), True

    def _check_ongoing(self) -> None:
        if not self.status.ongoing:
            raise UserError("The episode is over. Start another one.")

    def _next(self) -> ContextState:
        self._check_ongoing()
        if self.pending is None:
            raise UserError("There is nothing to reply to. Write a message first.")
        return self.pending

    async def _take(self, pending: ContextState, completion: Completion, *, by_hand: bool) -> None:
        parsed = self._context.parse(completion)
        step = SUMMARY if pending.is_summary else await self._step(parsed.message)
        turn = build_turn(pending.ids, pending.extends, completion, parsed, step)
        turns = self._builder.turns
        turns.append(replace(turn, info={**turn.info, BY_HAND: True}) if by_hand else turn)
        self.pending = None
        if step.over:
            self.status = step.status
        elif self._env is not None or pending.is_summary:
            await self._observe(step.messages)

    async def _step(self, action: Message) -> StepResult:
        return StepResult() if self._env is None else await self._in_time(self._env.step(action), "the environment")

    async def _observe(self, messages: Sequence[Message]) -> None:
        if self._last is None:
            raise RuntimeError("observe before start")
        if not self._context.can_fit(messages, self._limits.max_tokens):
            self.status = Status.TRUNCATED_TOKENS
            return
        context = self._context
        self._wait_for(await self._in_time(context.next(self._last, self._builder.turns, messages), context.builder))

    def _with_prefix(self, text: str) -> str:
        """Add the prefix of replies; one that opens a <think> block is closed at once."""
        if text.startswith(self._prefix):
            return text
        opens_thinking = self._prefix.rfind("<think>") > self._prefix.rfind("</think>")
        return f"{self._prefix}{'</think>' if opens_thinking else ''}{text}"

    async def _in_time(self, work: Awaitable[Found], who: str) -> Found:
        limit = self._limits.timeout_s
        try:
            with set_in_block(blocking_limit, limit):
                async with asyncio.timeout(limit):
                    return await interruptible(work, limit, who)
        except TimeoutError as error:
            raise EnvironmentFailure(
                f"{timeout_cause(error)} took longer than rollout.timeout_s {limit:g} s"
            ) from error
