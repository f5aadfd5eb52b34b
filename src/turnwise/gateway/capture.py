"""One episode behind a bearer: answers requests with sampled tokens and records every call with its exact ids.

Sampled ids are never encoded again: a request appends to what was recorded.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from turnwise.core.constraint import ConstraintError
from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import Message, ToolSpec
from turnwise.core.protocols import Sampling
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Stop, Turn
from turnwise.data.demonstrations import describe_tools
from turnwise.gateway.chat import ChatReply, ChatRequest, ContextOverflow, GatewayError, RequestError, episode_over
from turnwise.gateway.conversation import ConversationTrace, Digest, trace_conversation, write_calls
from turnwise.gateway.openai_responses import ResponseHistory
from turnwise.gateway.recording import SampledChoice, make_turn, record_choice, restore_call
from turnwise.gateway.reply_grammar import compile_rule, refusal
from turnwise.gateway.sessions import SessionPool
from turnwise.gateway.store import CallStore
from turnwise.gateway.tree import Branch, CallTree, Position
from turnwise.gateway.workers import Workers
from turnwise.render.renderer import Renderer
from turnwise.rollout.episode import Limits


async def render_prompt(
    renderer: Renderer, tree: CallTree, position: Position, request: ChatRequest, workers: Workers
) -> list[int]:
    """Return the ids that follow the parent's. Raises RequestError for messages that the template refuses."""
    try:
        return await workers.work_on(request, _render, renderer, tree, position, request.tools)
    except (UserError, EnvironmentFailure) as error:
        raise RequestError("messages", str(error)) from error


def _render(renderer: Renderer, tree: CallTree, position: Position, tools: Sequence[ToolSpec]) -> list[int]:
    """Encode the messages that the parent's ids do not cover.

    An assistant message that was sampled in another context has its sampled ids here too; without those of its thinking
    if the client dropped it. Others, such as one that the agent wrote or edited, are encoded.
    """
    first, *rest = _split_at_assistants(position.messages[position.shared :], opening=position.parent is None)
    if position.parent is not None:
        ids = renderer.extend(first, position.parent.completion.stop)
    else:
        ids = renderer.start(first, tools, describe_tools(tools))
    for assistant, *following in rest:
        answer, stop = _answer(renderer, tree, assistant)
        ids += [*answer, *renderer.extend(following, stop)]
    return ids


def _answer(renderer: Renderer, tree: CallTree, message: Message) -> tuple[Sequence[int], Stop]:
    """Return the ids of an assistant message and how they end."""
    if (sampled := tree.find_reply(message)) is not None:
        return sampled.completion.ids, sampled.completion.stop
    if (sampled := tree.find_answer(message)) is not None:
        stop = sampled.completion.stop
        if (ids := renderer.drop_thinking(sampled.completion.ids, stop)) is not None:
            return ids, stop
    return renderer.answer(write_calls(message)), Stop.EOS


def _split_at_assistants(messages: Sequence[Message], opening: bool) -> list[list[Message]]:
    """Split before each assistant message. The opening is not split before its first user or tool message."""
    groups: list[list[Message]] = [[]]
    for message in messages:
        opened = not opening or len(groups) > 1 or any(message.role in ("user", "tool") for message in groups[0])
        if message.role == "assistant" and opened:
            groups.append([])
        groups[-1].append(message)
    return groups


Replies = tuple[ChatReply, ...]

COUNTED_CONTEXTS = 8
"""Longest text whose tokens are counted, in lengths of the context."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that is running or was answered, for its retries."""

    replies: asyncio.Future[Replies]
    retries: int = 0
    """Highest retry count that was answered with it."""


class GatewayEpisode:
    """Calls of one episode. `reply` answers a request; `turns` are those of the trajectory."""

    def __init__(
        self,
        key: EpisodeKey,
        *,
        bearer: str,
        renderer: Renderer,
        limits: Limits,
        sessions: SessionPool,
        store: CallStore,
        workers: Workers,
        keep: int | None = None,
    ) -> None:
        """`keep`: number of branches to keep in memory, for an episode without end; None: all."""
        self.key, self.bearer = key, bearer
        self.id = f"{key.address:016x}"
        self.closed = False
        self.overflowed = False
        """Whether a request did not fit into the context."""
        self.refusal = ""
        """Message of the last error that was the caller's fault."""
        self.failure: Exception | None = None
        """First failure of a call that was not the caller's fault."""
        self.rewards: dict[str, float] = {}
        """Rewards that the agent posted, by call; "" is the episode's own."""
        self.takes_rewards = True
        """Whether the agent may post rewards."""
        self.history = ResponseHistory()
        """Items of the replies in the Responses dialect."""
        self._renderer, self._limits, self._sessions, self._store = renderer, limits, sessions, store
        self._workers, self._keep = workers, keep
        self._tree = CallTree(key)
        self._requests: dict[Digest, list[PendingRequest]] = {}
        self._count = 0

    @property
    def calls(self) -> int:
        """Number of recorded calls."""
        return sum(len(branch.calls) for branch in self._tree.branches)

    @property
    def posted(self) -> float | None:
        """The episode's own posted reward; 0 if only calls have one, None if nothing was posted."""
        return self.rewards.get("", 0.0) if self.rewards else None

    def turns(self) -> tuple[Turn, ...]:
        """Return the turns of all branches, one branch after another. The branch of the latest request comes last."""
        return tuple(make_turn(call, self.rewards.get(call.stored.id, 0.0)) for call in self._tree.calls())

    async def reply(self, request: ChatRequest, retry: int = 0) -> Replies:
        """Answer a request with `request.n` replies.

        `retry`: the client's count of retries. A retry gets the recorded replies, or joins the call that is still
        running. A caller that goes away does not stop the call.
        """
        if self.closed:
            raise episode_over()
        pending = self._find_retried(request.digest, retry) if retry else None
        if pending is None:
            pending = self._start(request)
        try:
            return await asyncio.shield(pending.replies)
        except asyncio.CancelledError:
            if self.closed and pending.replies.cancelled():
                raise episode_over() from None
            raise

    async def count(self, request: ChatRequest) -> int:
        """Return the number of prompt tokens that `reply` would use, even if they do not fit. Records nothing.

        Raises ContextOverflow for a text that is too long to be counted.
        """
        if not await self._can_fit(request, COUNTED_CONTEXTS * self._limits.max_tokens):
            raise ContextOverflow(self._limits.max_tokens, tokens=None)
        position = self._tree.locate(await self._trace(request))
        appended = await render_prompt(self._renderer, self._tree, position, request, self._workers)
        return len(appended) + (len(position.parent.context()) if position.parent is not None else 0)

    async def set_reward(self, reward: float, call: str = "") -> None:
        """Set the reward of the episode or of one of its calls. A later one replaces it."""
        if self.closed:
            raise episode_over()
        if not self.takes_rewards:
            raise RequestError("reward", "the tests of the task decide the reward")
        if call and all(call != recorded.stored.id for recorded in self._tree.calls()):
            raise RequestError("call", f"{call!r} is not a call of this episode")
        await self._store.set_reward(self.id, call, reward)
        self.rewards[call] = reward

    async def restore(self) -> None:
        """Continue from what the store has of this episode, after the process that served it was killed."""
        self.rewards = await self._store.rewards(self.id)
        answered: dict[tuple[Digest, int], list[ChatReply]] = {}
        for stored in await self._store.calls(self.id):
            call = restore_call(stored, self._tree, self._renderer)
            self._tree.add(call)
            if (response := stored.details.get("response")) is not None:  # stores of earlier versions have none
                self.history.restore(response, call.reply)
            answered.setdefault((stored.request, stored.number), []).append(call.reply)
            self._count = stored.number + 1
        for (name, _), replies in answered.items():
            pending = PendingRequest(asyncio.get_running_loop().create_future())
            pending.replies.set_result(tuple(replies))
            self._requests.setdefault(name, []).append(pending)
        await self._forget()

    async def close(self) -> None:
        """Revoke the bearer, stop running calls and close the sessions. Recorded calls remain."""
        self.closed = True
        running = [
            pending.replies for same in self._requests.values() for pending in same if not pending.replies.done()
        ]
        for replies in running:
            replies.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._sessions.close(*(branch.session for branch in self._tree.branches))

    def _start(self, request: ChatRequest) -> PendingRequest:
        same = self._requests.setdefault(request.digest, [])
        pending = PendingRequest(asyncio.create_task(self._answer(request)))

        def forget_failed(replies: asyncio.Future[Replies]) -> None:
            """Let the retry of a failed request run again."""
            failure = None if replies.cancelled() else replies.exception()
            if replies.cancelled() or failure is not None:
                same.remove(pending)
            if isinstance(failure, Exception) and not isinstance(failure, GatewayError):
                self.failure = self.failure or failure

        pending.replies.add_done_callback(forget_failed)
        same.append(pending)
        return pending

    def _find_retried(self, name: Digest, retry: int) -> PendingRequest | None:
        """Return the latest equal request that was retried less often: equal requests may run in parallel."""
        for pending in reversed(self._requests.get(name, ())):
            if pending.retries < retry:
                pending.retries = retry
                return pending
        return None

    async def _answer(self, request: ChatRequest) -> Replies:
        number, self._count = self._count, self._count + 1
        position = await self._locate(request)
        branches = self._tree.claim(position, request.n)
        try:
            sampled = await self._sample(request, position, branches)
            record = partial(record_choice, request, position.conversation, renderer=self._renderer, episode=self.id)
            response = self.history.describe(request)
            calls = [
                record(completion, number=number, choice=choice, response=response)
                for choice, completion in enumerate(sampled)
            ]
            await self._store.add_calls([call.stored for call in calls])
            for call in calls:
                self._tree.add(call)
        except BaseException:  # sessions may have sampled what is not recorded
            await self._sessions.close(*(branch.session for branch in branches))
            raise
        finally:
            self._tree.release(branches)
        replies = tuple(call.reply for call in calls)
        self.history.add(request, replies)
        await self._forget()
        return replies

    async def _forget(self) -> None:
        """Forget branches and answered requests beyond the latest `keep`."""
        if self._keep is None:
            return
        await self._sessions.close(*(branch.session for branch in self._tree.forget(self._keep)))
        for name in list(self._requests)[: -self._keep]:
            if all(pending.replies.done() for pending in self._requests[name]):
                del self._requests[name]

    async def _locate(self, request: ChatRequest) -> Position:
        if request.messages[-1].role == "assistant":
            raise RequestError("messages", "the last message is the assistant's own: end with a user or tool message")
        if not self._renderer.reads_images and any(message.images for message in request.messages):
            raise RequestError("messages", "this model does not read images: remove them")
        if not await self._can_fit(request, self._limits.max_tokens):
            self.overflowed = True
            raise ContextOverflow(self._limits.max_tokens, tokens=None)
        return self._tree.locate(await self._trace(request))

    async def _can_fit(self, request: ChatRequest, max_tokens: int) -> bool:
        return await self._workers.work_on(
            request, self._renderer.can_fit, request.messages, max_tokens, tools=request.tools
        )

    async def _trace(self, request: ChatRequest) -> ConversationTrace:
        return await self._workers.work_on(request, trace_conversation, request.messages, request.tools)

    async def _sample(
        self, request: ChatRequest, position: Position, branches: Sequence[Branch]
    ) -> list[SampledChoice]:
        appended = await render_prompt(self._renderer, self._tree, position, request, self._workers)
        context = [*(position.parent.context() if position.parent is not None else ()), *appended]
        sampling = self._sampling(request, len(context))
        if request.rule is not None:
            sampling = replace(sampling, constraint=await compile_rule(request.rule, self._renderer))

        async def sample(branch: Branch) -> SampledChoice:
            extends = bool(branch.calls)
            return SampledChoice(
                branch=branch,
                completion=await self._sessions.generate(branch.session, context, len(appended), sampling),
                extends=extends,
                context_ids=tuple(appended if extends else context),
                prompt_tokens=len(context),
                stop_strings=sampling.stop,
            )

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(sample(branch)) for branch in branches]
        except ExceptionGroup as failures:
            failure = failures.exceptions[0]
            if isinstance(failure, ConstraintError) and request.rule is not None:
                raise refusal(request.rule, failure) from None
            raise failure from None
        return [task.result() for task in tasks]

    def _sampling(self, request: ChatRequest, length: int) -> Sampling:
        """Return the enforced sampling. Of the caller's wishes, stop strings and a lower token limit are honoured."""
        left = self._limits.max_tokens - length
        if left <= 0:
            self.overflowed = True
            raise ContextOverflow(self._limits.max_tokens, tokens=length)
        enforced = self._limits.sampling
        most = min(enforced.max_tokens, left, request.max_tokens or left)
        return replace(enforced, max_tokens=most, stop=tuple(dict.fromkeys((*enforced.stop, *request.stop))))
