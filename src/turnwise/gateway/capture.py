"""One episode behind a bearer: answers requests with sampled tokens and records every call with its exact ids."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.messages import Message, ToolSpec
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.random_streams import address
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Stop, Turn
from turnwise.data.demonstrations import describe_tools
from turnwise.gateway.chat import ChatReply, ChatRequest, ContextOverflow, ReplyStop, RequestError, episode_over
from turnwise.gateway.conversation import (
    Digest,
    digest,
    digest_message,
    number_calls,
    reply_message,
    write_calls,
)
from turnwise.gateway.reading import ReplyText, read_reply
from turnwise.gateway.sessions import SessionPool
from turnwise.gateway.store import CallStore, StoredCall
from turnwise.gateway.tree import Branch, CallTree, Place, RecordedCall
from turnwise.render.renderer import Renderer
from turnwise.rollout.episode import Limits

LARGE_CHARS = 20_000
"""Conversations with more characters are encoded in a thread, so that they do not block the event loop."""
HOW_TO_CALL = 'Call a tool: <tool_call>{"name": NAME, "arguments": {...}}</tool_call>'
"""For models whose chat template has no tools."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that is running or was answered, for its retries."""

    task: "asyncio.Task[tuple[ChatReply, ...]]"
    retries: int = 0
    """Highest retry count that was answered with it."""


class Episode:
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
    ) -> None:
        self.key, self.bearer = key, bearer
        self.id = f"{key.address:016x}"
        self.closed = False
        self.overflowed = False
        """Whether a request did not fit into the context."""
        self.rewards: dict[str, float] = {}
        """Rewards that the agent posted, by call; "" is the episode's own."""
        self._renderer, self._limits, self._sessions, self._store = renderer, limits, sessions, store
        self._tree = CallTree(key)
        self._requests: dict[Digest, list[PendingRequest]] = {}
        self._count = 0

    async def reply(self, request: ChatRequest, retry: int = 0) -> tuple[ChatReply, ...]:
        """Answer a request with `request.n` replies.

        `retry`: the client's count of retries. A retry gets the recorded replies, or joins the call that is still
        running. A caller that goes away does not stop the call.
        """
        if self.closed:
            raise episode_over()
        name = digest(request.body)
        pending = self._find_retried(name, retry) if retry else None
        if pending is None:
            pending = self._start(request, name)
        try:
            return await asyncio.shield(pending.task)
        except asyncio.CancelledError:
            if self.closed and pending.task.cancelled():
                raise episode_over() from None
            raise

    def _start(self, request: ChatRequest, name: Digest) -> PendingRequest:
        pending = PendingRequest(asyncio.create_task(self._answer(request, name)))
        self._requests.setdefault(name, []).append(pending)

        def forget_failed(task: "asyncio.Task[tuple[ChatReply, ...]]") -> None:
            if task.cancelled() or task.exception() is not None:  # its retry runs again
                self._requests[name].remove(pending)

        pending.task.add_done_callback(forget_failed)
        return pending

    def _find_retried(self, name: Digest, retry: int) -> PendingRequest | None:
        """Return the latest equal request that was retried less often: equal requests may run in parallel."""
        for pending in reversed(self._requests.get(name, ())):
            if pending.retries < retry:
                pending.retries = retry
                return pending
        return None

    async def set_reward(self, reward: float, call: str = "") -> None:
        """Set the reward of the episode or of one of its calls. A later one replaces it."""
        if self.closed:
            raise episode_over()
        if call and all(call != each.stored.id for each in self._tree.calls()):
            raise RequestError("call", f"{call!r} is not a call of this episode")
        await self._store.set_reward(self.id, call, reward)
        self.rewards[call] = reward

    def turns(self) -> tuple[Turn, ...]:
        """Return the turns of all branches, one branch after another. The branch of the latest request comes last."""
        return tuple(self._turn(call) for call in self._tree.calls())

    def _turn(self, call: RecordedCall) -> Turn:
        completion, stored = call.completion, call.stored
        return Turn(
            context_ids=stored.context_ids,
            extends=stored.extends,
            action_ids=completion.ids,
            action_logprobs=completion.logprobs,
            temperature=completion.temperature,
            spans=call.parsed.spans,
            message=call.parsed.message,
            stop=completion.stop,
            reward=self.rewards.get(stored.id, 0.0),
            info={"call": stored.id, "branch": stored.branch, "asked": stored.details["asked"]},
            policy_versions=completion.policy_versions,
            values=completion.values,
        )

    async def close(self) -> None:
        """Revoke the bearer, stop running calls and close the sessions. Recorded calls remain."""
        self.closed = True
        running = [each.task for same in self._requests.values() for each in same if not each.task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._sessions.close(*(branch.session for branch in self._tree.branches))

    async def _answer(self, request: ChatRequest, name: Digest) -> tuple[ChatReply, ...]:
        number, self._count = self._count, self._count + 1
        place = self._tree.locate(self._checked(request), request.tools)
        branches = self._tree.claim(place, request.n)
        try:
            sampled = await self._sample(request, place, branches)
            calls = [self._record(request, place, each, name, number, choice) for choice, each in enumerate(sampled)]
            await self._store.add_calls([call.stored for call in calls])
            for call in calls:
                self._tree.add(call)
        finally:
            self._tree.release(branches)
        return tuple(call.reply for call in calls)

    def _checked(self, request: ChatRequest) -> tuple[Message, ...]:
        if request.messages[-1].role == "assistant":
            raise RequestError("messages", "the last message is the assistant's own: end with a user or tool message")
        if not self._renderer.can_fit(request.messages, self._limits.max_tokens):
            self.overflowed = True
            raise ContextOverflow(self._limits.max_tokens, tokens=None)
        return number_calls(request.messages)

    async def _sample(self, request: ChatRequest, place: Place, branches: Sequence[Branch]) -> list["Sampled"]:
        appended = await self._render(place, request.tools)
        context = [*(place.parent.context() if place.parent is not None else ()), *appended]
        sampling = self._sampling(request, len(context))

        async def one(branch: Branch) -> Sampled:
            completion = await self._sessions.generate(branch.session, context, len(appended), sampling)
            extends = bool(branch.calls)
            ids = appended if extends else context
            return Sampled(branch, completion, extends, tuple(ids), len(context))

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(branch)) for branch in branches]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _render(self, place: Place, tools: Sequence[ToolSpec]) -> list[int]:
        """Return the ids that follow the parent's."""
        chars = sum(len(message.content) for message in place.messages[place.shared :])
        try:
            if chars > LARGE_CHARS:
                return await asyncio.to_thread(self._ids_after_parent, place, tools)
            return self._ids_after_parent(place, tools)
        except UserError as error:
            raise RequestError("messages", str(error)) from error

    def _ids_after_parent(self, place: Place, tools: Sequence[ToolSpec]) -> list[int]:
        """Encode the messages that the parent's ids do not cover.

        An assistant message that the gateway sampled in another context has its sampled ids here too. Others, such as
        one that the agent wrote itself, are encoded.
        """
        first, *rest = _split_at_assistants(place.messages[place.shared :], opening=place.parent is None)
        if place.parent is not None:
            ids = self._renderer.extend(first, place.parent.completion.stop)
        else:
            words = f"{describe_tools(tools)}\n{HOW_TO_CALL}" if tools else ""
            ids = self._renderer.start(first, tools, words)
        for assistant, *following in rest:
            action, stop = self._action(assistant)
            ids += [*action, *self._renderer.extend(following, stop)]
        return ids

    def _action(self, message: Message) -> tuple[Sequence[int], Stop]:
        sampled = self._tree.find_reply(message)
        if sampled is not None:
            return sampled.completion.ids, sampled.completion.stop
        return self._renderer.answer(write_calls(message)), Stop.EOS

    def _sampling(self, request: ChatRequest, length: int) -> Sampling:
        """Return the enforced sampling. Of the caller's wishes, stop strings and a lower token limit are honoured."""
        left = self._limits.max_tokens - length
        if left <= 0:
            self.overflowed = True
            raise ContextOverflow(self._limits.max_tokens, tokens=length)
        enforced = self._limits.sampling
        most = min(enforced.max_tokens, left, request.max_tokens or left)
        return replace(enforced, max_tokens=most, stop=tuple(dict.fromkeys((*enforced.stop, *request.stop))))

    def _record(
        self, request: ChatRequest, place: Place, sampled: "Sampled", name: Digest, number: int, choice: int
    ) -> RecordedCall:
        completion = sampled.completion
        parsed = self._renderer.parse(completion.ids, completion.stop)
        text = read_reply(completion, parsed, request.tools, (*self._limits.sampling.stop, *request.stop))
        call = f"{address('call', self.id, number, choice):016x}"
        message = reply_message(text.content, text.calls, call)
        reply_digest = digest_message(number_calls([message])[0])
        stored = StoredCall(
            id=call,
            episode=self.id,
            number=number,
            choice=choice,
            branch=sampled.branch.number,
            extends=sampled.extends,
            conversation=digest(place.conversation, reply_digest),
            reply=reply_digest,
            request=name,
            context_ids=sampled.context_ids,
            action_ids=completion.ids,
            logprobs=completion.logprobs,
            policy_versions=completion.policy_versions,
            details=_details(request, completion, text, sampled.prompt_tokens),
        )
        reply = _reply(message, text, completion, sampled.prompt_tokens, call)
        return RecordedCall(stored=stored, branch=sampled.branch, completion=completion, parsed=parsed, reply=reply)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled choice."""

    branch: Branch
    completion: Completion
    extends: bool
    context_ids: tuple[int, ...]
    """Ids appended to the branch, or its whole context."""
    prompt_tokens: int


def _split_at_assistants(messages: Sequence[Message], opening: bool) -> list[list[Message]]:
    """Split before each assistant message. The opening is not split before its first user or tool message."""
    groups: list[list[Message]] = [[]]
    for message in messages:
        opened = not opening or len(groups) > 1 or any(each.role in ("user", "tool") for each in groups[0])
        if message.role == "assistant" and opened:
            groups.append([])
        groups[-1].append(message)
    return groups


def _reply(message: Message, text: ReplyText, completion: Completion, prompt_tokens: int, call: str) -> ChatReply:
    ended: ReplyStop = "length" if completion.stop is Stop.LENGTH else "stop"
    return ChatReply(
        message=message,
        thinking=text.thinking,
        stop="tool_calls" if message.tool_calls else ended,
        prompt_tokens=prompt_tokens,
        sampled_tokens=len(completion.ids),
        policy_version=completion.policy_versions[-1] if completion.policy_versions else None,
        call=call,
    )


def _details(request: ChatRequest, completion: Completion, text: ReplyText, prompt_tokens: int) -> dict[str, Any]:
    return {
        "stop": completion.stop.value,
        "temperature": completion.temperature,
        "values": list(completion.values),
        "prompt_tokens": prompt_tokens,
        "content": text.content,
        "thinking": text.thinking,
        "calls": [[call.name, call.arguments] for call in text.calls],
        "asked": dict(request.wishes),
    }
