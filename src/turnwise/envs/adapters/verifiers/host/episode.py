"""One episode: the environment asks for the model's replies, and the other side of the socket gives them.

The environment drives. `advance` hands it a reply and waits until it asks for the next one or has scored the episode.
"""

import asyncio
import json
import math
import secrets
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ROLES = ("system", "user", "tool")
"""Roles that may speak after the first messages."""
MAX_REASON_CHARS = 500


class EpisodeFailure(Exception):
    """The episode cannot be used. The message is one line."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Result of a finished episode."""

    reward: Any
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Unweighted rewards by name; None for one that was never computed."""
    truncated: bool = False
    """A limit ended the episode."""

    def checked(self) -> "Score":
        """Return the score with numbers. Raises EpisodeFailure for rewards that are missing or not finite."""
        parts = {name: _number(f'reward "{name}"', value) for name, value in self.parts.items()}
        return Score(reward=_number("reward", self.reward), parts=parts, truncated=self.truncated)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What the agent sees next; with a score, the episode is over."""

    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    score: Score | None = None


class Episode:
    """`run` is the environment's rollout, which calls `ask` for every reply."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Score] | None = None
        self._asked: asyncio.Future[Turn] | None = None
        self._reply: asyncio.Future[dict[str, Any]] | None = None
        self._history: list[Any] = []
        self._tools: Any = None

    async def start(self, run: Coroutine[Any, Any, Score]) -> Turn:
        self._task = asyncio.create_task(run)
        turn = await self._next()
        if turn.score is not None:
            raise EpisodeFailure("the episode is over before the first reply")
        return turn

    async def advance(self, reply: dict[str, Any]) -> Turn:
        if self._reply is None:
            raise EpisodeFailure("a reply that nobody asked for")
        reply_to, self._reply = self._reply, None
        reply_to.set_result(reply)
        return await self._next()

    async def _next(self) -> Turn:
        """Wait until the environment asks for a reply, or the episode is scored."""
        if self._task is None:
            raise EpisodeFailure("a reply before the start")
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
        waiting: set[asyncio.Future[Any]] = {self._asked, self._task}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._asked.done():
            asked, self._asked = self._asked, None
            return asked.result()
        return Turn(score=self._task.result().checked())

    async def ask(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> dict[str, Any]:
        """Return the model's next message, in the format of chat completions."""
        if self._reply is not None or (self._asked is not None and self._asked.done()):
            raise EpisodeFailure("the environment asks for two replies at once: train its agents one by one")
        turn = self._read(_plain(list(messages)), _plain(list(tools or ())))
        self._reply = asyncio.get_running_loop().create_future()
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
        self._asked.set_result(turn)
        return await self._reply

    def _read(self, messages: list[Any], tools: list[Any]) -> Turn:
        """Return the messages since the last reply. The tokens of earlier ones are fixed."""
        before = len(self._history)
        if not before:
            self._history, self._tools = messages, tools
            return Turn(messages=messages, tools=tools)
        if messages[:before] != self._history or len(messages) <= before or messages[before]["role"] != "assistant":
            raise EpisodeFailure(
                "the environment has rewritten earlier messages, whose tokens the model has already been given"
            )
        new = messages[before + 1 :]
        if any(message["role"] not in ROLES for message in new):
            raise EpisodeFailure(
                "the environment speaks for the agent: a message after its reply has the role assistant"
            )
        if tools != self._tools:
            raise EpisodeFailure("the environment has changed its tools in mid-episode")
        self._history = messages
        return Turn(messages=new, tools=tools)

    async def close(self) -> None:
        """End the rollout. Its clean-up runs, and its errors no longer matter."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.exception()


def completion(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reply as a chat completion. An empty one is a space: verifiers takes an empty message for a failure."""
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in reply.get("tool_calls") or ()
    ]
    message: dict[str, Any] = {"role": "assistant", "content": reply["content"] or ("" if calls else " ")}
    if calls:
        message["tool_calls"] = calls
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "policy",
        "choices": [{"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _plain(value: Any) -> Any:
    """Return JSON values without empty fields. Raises EpisodeFailure for what JSON does not have."""
    try:
        return json.loads(json.dumps(value), object_hook=lambda item: {k: v for k, v in item.items() if v is not None})
    except (TypeError, ValueError, RecursionError) as error:
        raise EpisodeFailure(f"a message is not JSON: {describe(error)}") from error


def _number(name: str, value: Any) -> float:
    """Return a reward as a number. Raises EpisodeFailure if it is missing, NaN or infinite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        problem = "missing" if value is None else f"{str(value)[:40]}, which is not a finite number"
        raise EpisodeFailure(f"the {name} is {problem}")
    return number


def describe(error: BaseException) -> str:
    """Return an error in one line of bounded length, with its cause."""
    cause = error.__cause__
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if cause is not None and str(cause) not in text:
        text += f" ({type(cause).__name__}: {cause})"
    return " ".join(text.split())[:MAX_REASON_CHARS]
