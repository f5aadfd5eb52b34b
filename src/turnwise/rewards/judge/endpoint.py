"""A judge behind an OpenAI-compatible endpoint."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from turnwise.concurrency.per_loop import PerLoop
from turnwise.core.errors import InfrastructureFailure, UserError, read_failure
from turnwise.core.messages import Message, ToolSpec
from turnwise.core.protocols import Sampling
from turnwise.core.trajectory import Stop
from turnwise.engine.openai.client import ChatClient
from turnwise.engine.openai.endpoint import (
    EXAMPLE_URL,
    KEY_VARIABLE,
    ContextLengthError,
    Endpoint,
    EndpointError,
    TransientError,
)
from turnwise.engine.openai.messages import Reply
from turnwise.network.secrets import read_key, split_url
from turnwise.rewards.judge.budget import JudgeBudget
from turnwise.rewards.judge.client import JudgeAnswer, estimate_tokens
from turnwise.rewards.judge.settings import JudgeSettings

OPENAI_URL, URL_VARIABLE = "https://api.openai.com/v1", "OPENAI_BASE_URL"
MAX_KEY_CHARS = 10_000

Sleep = Callable[[float], Awaitable[None]]


class EndpointJudgeModel:
    """A `JudgeModel` that asks an endpoint."""

    def __init__(self, settings: JudgeSettings, budget: JudgeBudget, sleep: Sleep = asyncio.sleep) -> None:
        try:
            endpoint = _endpoint(settings)
        except UserError as error:
            raise UserError(f"The judge {settings.model}: {error}") from None
        self.identity = (endpoint.chat_url, endpoint.model)
        self._settings, self._endpoint = settings, endpoint
        self._sampling = Sampling(max_tokens=settings.max_tokens, temperature=settings.temperature)
        self._client = PerLoop(lambda: MeteredClient(endpoint, budget, sleep))

    async def __call__(self, messages: Sequence[Message]) -> JudgeAnswer:
        with self._advising():
            try:
                reply = await self._client.get().reply(messages, (), self._sampling, seed=0)
            except ContextLengthError as error:
                raise UserError(f"{self._label}: {error}: the request is too long, so lower max_chars.") from error
            except InfrastructureFailure as failure:
                raise InfrastructureFailure(f"{self._label} at {self._endpoint.chat_url}: {failure}") from failure
        return JudgeAnswer(text=reply.message.content, cut=reply.stop is Stop.LENGTH)

    async def check_server(self) -> None:
        """Send one short request, which is not counted in the budget."""
        with self._advising():
            async with ChatClient(self._endpoint) as client:
                await client.check(self._sampling)

    async def close(self) -> None:
        if (client := self._client.take()) is not None:
            await client.close()

    @property
    def _label(self) -> str:
        return f"the judge {self._settings.model}"

    @contextmanager
    def _advising(self) -> Iterator[None]:
        """Add which setting of the judge to change to errors of the endpoint."""
        try:
            yield
        except EndpointError as error:
            raise error.with_advice(_advice(error, self._settings), prefix=f"{self._label}: ") from None


class MeteredClient(ChatClient):
    """A client that reserves from the budget before each request, including retries."""

    def __init__(self, endpoint: Endpoint, budget: JudgeBudget, sleep: Sleep) -> None:
        super().__init__(endpoint, sleep=sleep)
        self._budget = budget

    async def _send(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, seed: int
    ) -> Reply:
        prompt = estimate_tokens(messages)
        reservation = await self._budget.reserve(prompt + sampling.max_tokens)
        cost = reservation.tokens  # a request that is cut off may have cost this much
        try:
            reply = await super()._send(messages, tools, sampling, seed)
            cost = cost if reply.only_reasoned and reply.sampled_tokens is None else _cost(reply, prompt)
            return reply
        except TransientError as failure:
            self._budget.counts.retried += 1
            cost = cost if failure.__cause__ is not None else 0  # without a cause the endpoint refused the request
            raise
        except (UserError, ContextLengthError):
            cost = 0
            raise
        finally:
            reservation.settle(cost)


def _cost(reply: Reply, prompt: int) -> int:
    if reply.prompt_tokens is None or reply.sampled_tokens is None:
        return prompt + estimate_tokens([reply.message])
    return reply.prompt_tokens + reply.sampled_tokens


def _endpoint(settings: JudgeSettings) -> Endpoint:
    url = settings.endpoint or os.environ.get(URL_VARIABLE, "").strip() or OPENAI_URL
    parts = split_url(url, option="endpoint", example=EXAMPLE_URL, fix="name the variable that holds it in key_env")
    if settings.key_file:
        key: str | None = _read_key_file(settings.key_file)
    else:
        key = read_key(parts, settings.key_env or None, default=KEY_VARIABLE, option="key_env")
    if key is None and parts.hostname == urlsplit(OPENAI_URL).hostname:
        raise UserError(f"{OPENAI_URL} requires a key: set {KEY_VARIABLE}, or set endpoint to another URL.")
    return Endpoint(url=url, model=settings.model, key=key, timeout_s=settings.timeout_s, retries=settings.retries)


def _read_key_file(name: str) -> str:
    try:
        with Path(name).expanduser().open(encoding="utf-8") as file:
            key = file.read(MAX_KEY_CHARS).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"key_file {read_failure(Path(name), error)}: give a file with the key.") from error
    if not key or not (key.isascii() and key.isprintable()) or " " in key:
        raise UserError(f"key_file {name} does not hold a key: give a file with nothing but the key.")
    return key


def _advice(error: EndpointError, settings: JudgeSettings) -> str:
    source = f"key_file {settings.key_file}" if settings.key_file else settings.key_env
    match error.reason:
        case "unreachable":
            return "start it, or correct endpoint"
        case "unauthorized" if error.endpoint.key and source:
            return f"replace the key in {source}"
        case "unauthorized":
            return f"set {KEY_VARIABLE}, or name the variable that holds the key in key_env"
        case "quota":
            return "raise it there"
        case "wait":
            return "try again after that"
        case "not_found":
            return f'check model = "{settings.model}", and that endpoint ends in /v1'
        case "redirect":
            return "set endpoint to the final address"
        case "rejected":
            return "fix the parameter that the error names, or choose another model"
