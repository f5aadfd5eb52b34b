"""Client of a chat endpoint: one request per turn, retried after transient failures.

Not the package openai, which only the extra `gateway` installs: a Retry-After holds for all requests of a run, refused
parameters are learnt (`dialect`), and any answer at all is read within limits or counted as a failure.
"""

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import httpx2

from turnwise.core.errors import InfrastructureFailure, format_times
from turnwise.core.messages import Message, ToolSpec, user
from turnwise.core.protocols import Sampling
from turnwise.engine.openai.dialect import OUT_OF_TOKENS, REASONING_TOKENS, dialect_for
from turnwise.engine.openai.endpoint import (
    ContextLengthError,
    Endpoint,
    EndpointError,
    EndpointOutage,
    TransientError,
    error_detail,
    error_for_status,
)
from turnwise.engine.openai.messages import (
    MalformedReply,
    Reply,
    cut_at_stop,
    message_json,
    parse_reply,
    tools_json,
)

MAX_BYTES = 8_000_000
"""Longest answer that is read."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
CHECK_MESSAGES = (user("Reply with the word OK."),)
"""The request that checks an endpoint before a run."""
CHECK_TIMEOUT_S = 30.0

log = logging.getLogger(__name__)


class ChatClient:
    """`async with ChatClient(endpoint) as chat:` then any number of concurrent `await chat.reply(...)`.

    A retried request is sampled again. Only an answer that was read completely counts.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`jitter`: number in [0, 1) that spreads retries. It must differ between processes and affects no result."""
        self._endpoint, self._sleep, self._jitter = endpoint, sleep, jitter
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if endpoint.key is not None:
            headers["Authorization"] = f"Bearer {endpoint.key}"
        self._http = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(endpoint.timeout_s, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        )
        self._dialect = dialect_for(endpoint.chat_url, endpoint.model)
        self._answered = False
        """Whether the endpoint has ever answered."""
        self._paused_until = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, seed: int
    ) -> Reply:
        """Return the model's next turn.

        A model that uses the whole token budget for reasoning is asked once more, with REASONING_TOKENS added.

        Raises InfrastructureFailure if all retries failed, EndpointError if retries cannot help or the endpoint has
        never answered, and ContextLengthError if the conversation is too long.
        """
        extra = self._dialect.reasoning_tokens
        try:
            reply = await self._retry(messages, tools, _with_budget(sampling, extra), seed)
        except ContextLengthError:
            if not extra:
                raise
            return await self._retry(messages, tools, sampling, seed)
        if extra or not reply.only_reasoned:
            return reply
        try:
            longer = await self._retry(messages, tools, _with_budget(sampling, REASONING_TOKENS), seed)
        except (ContextLengthError, EndpointError):  # it allows no larger budget
            return reply
        self._dialect.raise_budget()
        return longer

    async def check(self, sampling: Sampling) -> None:
        """Send one short request, to find a wrong address, key or model before a run, and learn the model's parameters.

        Raises EndpointError. Transient failures of a server that is there pass, because a run retries them.
        """
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._send_adapted(CHECK_MESSAGES, (), sampling, 0)
        except (TimeoutError, ContextLengthError):
            return
        except TransientError as failure:
            if isinstance(failure.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout):
                what = f"no answer from {self._endpoint.chat_url} ({failure})"
                raise EndpointOutage(what, endpoint=self._endpoint, reason="unreachable") from failure
            if isinstance(failure.__cause__, MalformedReply):
                what = f"{self._endpoint.chat_url} does not answer as a chat endpoint: {failure}"
                raise EndpointError(what, endpoint=self._endpoint, reason="not_found") from failure

    async def _retry(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, seed: int
    ) -> Reply:
        last = TransientError("")
        for sent in range(self._endpoint.retries + 1):
            await self._wait_for_pause()
            try:
                return replace(await self._send_adapted(messages, tools, sampling, seed), retries=sent)
            except TransientError as failure:
                last = failure
            if sent < self._endpoint.retries:
                await self._back_off(sent, last)
        if not self._answered:
            what = f"no answer from {self._endpoint.chat_url} ({last})"
            raise EndpointOutage(what, endpoint=self._endpoint, reason="unreachable")
        raise InfrastructureFailure(f"{last}, {format_times(self._endpoint.retries + 1)}")

    async def _send_adapted(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, seed: int
    ) -> Reply:
        """Send again without each parameter that the model refuses. Not a retry: it ends when none is left."""
        while True:
            try:
                return await self._send(messages, tools, sampling, seed)
            except RefusedParameter:
                pass

    async def _wait_for_pause(self) -> None:
        """A Retry-After that one request was given holds for all requests."""
        if (left := self._paused_until - asyncio.get_running_loop().time()) > 0:
            await self._sleep(left)

    async def _back_off(self, sent: int, failure: TransientError) -> None:
        """Wait twice as long each time, or as long as the endpoint asks, spread so that not all come back at once."""
        longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**sent)
        wait_s = longest * (0.5 + 0.5 * self._jitter())
        if failure.after_s is not None:
            self._paused_until = max(self._paused_until, asyncio.get_running_loop().time() + failure.after_s)
            wait_s = failure.after_s + min(1.0, longest) * self._jitter() * bool(failure.after_s)
        if wait_s >= 5:
            log.info("%s; retrying in %.0f s", failure, wait_s)
        await self._sleep(wait_s)

    async def _send(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, seed: int
    ) -> Reply:
        request = self._request(messages, tools, sampling, seed)
        try:
            async with asyncio.timeout(self._endpoint.timeout_s):
                status, headers, body = await self._post(request)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise TransientError(f"no answer within {self._endpoint.timeout_s:g} s") from error
        except httpx2.RequestError as error:
            raise TransientError(f"the connection failed ({type(error).__name__}: {error})") from error
        if status != 200:
            if status == 400 and OUT_OF_TOKENS in body:
                return Reply.out_of_tokens()
            if status in (400, 422) and self._dialect.adapt(request, body):
                raise RefusedParameter("it refuses a parameter")
            raise error_for_status(self._endpoint, status, headers, body)
        try:
            reply = parse_reply(body)
            return cut_at_stop(reply, sampling.stop) if "stop" in self._dialect.refused else reply
        except MalformedReply as error:
            raise TransientError(f"{error}{error_detail(self._endpoint, body)}") from error

    async def _post(self, request: dict[str, Any]) -> tuple[int, httpx2.Headers, bytes]:
        data = json.dumps(request).encode("ascii")
        async with self._http.stream("POST", self._endpoint.chat_url, content=data) as response:
            self._answered = True
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MAX_BYTES:
                    raise TransientError(f"its answer is longer than {MAX_BYTES} bytes")
            return response.status_code, response.headers, bytes(body)

    def _request(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, seed: int
    ) -> dict[str, Any]:
        """Omit parameters at their defaults: endpoints differ in what they take."""
        request: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": [message_json(message) for message in messages],
            self._dialect.budget_name: sampling.max_tokens,
        }
        optional = {
            "temperature": (sampling.temperature, True),
            "seed": (seed, True),
            "top_p": (sampling.top_p, sampling.top_p < 1),
            "top_k": (sampling.top_k, sampling.top_k > 0),
            "stop": (list(sampling.stop), bool(sampling.stop)),
            "tools": (tools_json(tools), bool(tools)),
        }
        refused = self._dialect.refused
        return request | {name: value for name, (value, is_set) in optional.items() if is_set and name not in refused}


class RefusedParameter(TransientError):
    """The model refuses a parameter, which the next request leaves out or renames."""


def _with_budget(sampling: Sampling, extra: int) -> Sampling:
    return replace(sampling, max_tokens=sampling.max_tokens + extra)
