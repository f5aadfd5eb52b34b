"""A judge behind an OpenAI-compatible endpoint. Its key is read where the settings say, and told to nobody else."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from turnwise.core.errors import InfrastructureFailure, Outage, UserError
from turnwise.core.messages import Message, ToolSpec
from turnwise.core.protocols import Sampling
from turnwise.engine.openai.client import ChatClient
from turnwise.engine.openai.endpoint import (
    KEY_VARIABLE,
    PATH,
    ContextLengthError,
    Endpoint,
    TransientError,
    error_for_status,
    read_key,
    split_url,
)
from turnwise.engine.openai.messages import Reply
from turnwise.rewards.judge.budget import JudgeBudget
from turnwise.rewards.judge.client import estimate_tokens
from turnwise.rewards.judge.settings import JudgeSettings
from turnwise.rewards.per_loop import PerLoop

OPENAI, BASE_URL = "https://api.openai.com/v1", "OPENAI_BASE_URL"
OPTIONS = {"--api-key-env": "key_env", "--endpoint": "endpoint", "--model": "model"}
"""The client's words are for a command line; a judge has settings."""
LONGEST_KEY = 10_000
READY_S = 10.0

Sleep = Callable[[float], Awaitable[None]]


class EndpointJudgeModel:
    def __init__(self, settings: JudgeSettings, meter: JudgeBudget, sleep: Sleep = asyncio.sleep) -> None:
        with _in_our_words(settings.model):
            endpoint = _endpoint(settings)
            self.identity = (endpoint.chat_url, endpoint.model)
        self._endpoint = endpoint
        self._sampling = Sampling(max_tokens=settings.max_tokens, temperature=settings.temperature)
        self._client = PerLoop(lambda: MeteredClient(endpoint, meter, sleep))

    async def __call__(self, messages: Sequence[Message]) -> str:
        with _in_our_words(self._endpoint.model):
            try:
                reply = await self._client.get().reply(messages, (), self._sampling, seed=0)
            except ContextLengthError as full:
                raise UserError(f"{full}: that is too long for this judge: lower its max_chars") from full
            except InfrastructureFailure as failure:
                url, model = self.identity
                raise InfrastructureFailure(f"the judge {model} at {url}: {failure}") from failure
        return reply.message.content

    async def check_server(self) -> None:
        """Asks for the list of its models, which costs nothing. One that has no such list is there all the same."""
        chat = split_url(self._endpoint.chat_url)
        url = chat._replace(path=chat.path.removesuffix(PATH) + "/models").geturl()
        headers = {} if self._endpoint.key is None else {"Authorization": f"Bearer {self._endpoint.key}"}
        try:
            async with (
                httpx2.AsyncClient(headers=headers, timeout=READY_S) as client,
                client.stream("GET", url) as response,
            ):
                status = response.status_code
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise Outage(
                f"the judge {self._endpoint.model}: nothing answers at {self._endpoint.chat_url} "
                f"({type(error).__name__}): start it, or mend endpoint"
            ) from error
        except httpx2.RequestError:  # it is there, and perhaps busy: requests are sent again
            return
        if status in (401, 403):
            with _in_our_words(self._endpoint.model):
                raise error_for_status(self._endpoint, status, {}, b"")


class MeteredClient(ChatClient):
    """A client that asks the budget before each request, those that are sent again included."""

    def __init__(self, endpoint: Endpoint, meter: JudgeBudget, sleep: Sleep) -> None:
        super().__init__(endpoint, sleep=sleep)
        self._meter = meter

    async def _once(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling, seed: int
    ) -> Reply:
        prompt = estimate_tokens(messages)
        ticket = await self._meter.sending(prompt + sampling.max_tokens)
        cost = ticket.reserved  # of one that is cut off nobody knows what it cost
        try:
            reply = await super()._once(messages, tools, sampling, seed)
            cost = _cost(reply, prompt)
            return reply
        except TransientError as failure:
            self._meter.counts.retried += 1
            cost = cost if failure.__cause__ is not None else 0  # without a cause the endpoint itself refused it
            raise
        except (UserError, ContextLengthError):
            cost = 0
            raise
        finally:
            ticket.close(cost)


def _cost(reply: Reply, prompt: int) -> int:
    if reply.prompt_tokens is None or reply.sampled_tokens is None:
        return prompt + estimate_tokens([reply.message])
    return reply.prompt_tokens + reply.sampled_tokens


def _endpoint(settings: JudgeSettings) -> Endpoint:
    url = settings.endpoint or os.environ.get(BASE_URL, "").strip() or OPENAI
    key = _file_key(settings.key_file) if settings.key_file else read_key(url, settings.key_env or None)
    if key is None and split_url(url).hostname == split_url(OPENAI).hostname:
        raise UserError(f"{OPENAI} wants a key: set {KEY_VARIABLE}, or give endpoint = the URL of another")
    given: dict[str, Any] = {"timeout_s": settings.timeout_s, "retries": settings.retries}
    key_source = f"key_file {settings.key_file}" if settings.key_file else settings.key_env
    return Endpoint(url=url, model=settings.model, key=key, key_source=key_source, **given)


def _file_key(file: str) -> str:
    try:
        with Path(file).expanduser().open(encoding="utf-8") as opened:
            key = opened.read(LONGEST_KEY).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"key_file {file} cannot be read ({type(error).__name__}): give a file with the key") from error
    if not key or not (key.isascii() and key.isprintable()) or " " in key:
        raise UserError(f"key_file {file} holds no key: give a file with the key alone")
    return key


@contextmanager
def _in_our_words(model: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        text = str(error)
        for option, ours in OPTIONS.items():
            text = re.sub(rf"{option}(?![\w.-])", ours, text)  # --model.name is another
        raise type(error)(text if text.startswith("the judge") else f"the judge {model}: {text}") from None
