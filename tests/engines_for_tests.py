"""Engines with weights of their own: a copy of the native one, one that ignores what is published, a minimal one."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import deepcopy
from typing import Any

import torch

from turnwise.concurrency.loop_clock import count_blocked
from turnwise.core.protocols import Completion, EngineStats, Sampling, WeightSource
from turnwise.core.task import EpisodeKey
from turnwise.engine.engines import Native
from turnwise.engine.options import EngineOptions
from turnwise.engine.turn import SampledTurn, stop_reason
from turnwise.models.weights import copy_parameters
from turnwise.render.renderer import Renderer


class CopyEngine:
    """Generates by a native engine over a copy of the model, which only `publish` brings up to date."""

    def __init__(self, model: Any, renderer: Renderer, options: EngineOptions) -> None:
        self._model = deepcopy(model).requires_grad_(False)
        self._engine = Native().build(self._model, renderer, options)
        self.published: list[int] = []

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager[Any]:
        return self._engine.open(key)

    async def publish(self, version: int, weights: WeightSource) -> None:
        self.published.append(version)
        await self._engine.publish(version, weights)

    async def sleep(self) -> None:
        await self._engine.sleep()

    def stats(self) -> EngineStats:
        return self._engine.stats()


class ForgetfulEngine(CopyEngine):
    """Ignores what is published."""

    async def publish(self, version: int, weights: WeightSource) -> None:
        self.published.append(version)


class PlainSession:
    """Samples with a plain forward pass over the whole context, and nothing of the native engine."""

    def __init__(self, engine: "PlainEngine", key: EpisodeKey, context: Sequence[int] = ()) -> None:
        self._engine, self._context = engine, list(context)
        self._generator = torch.Generator().manual_seed(key.address)
        self.sampling_s = 0.0

    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        if restart:
            self._context.clear()
        self._context.extend(ids)
        turn = SampledTurn(sampling=sampling)
        while turn.stop is None:
            began = time.perf_counter()
            self._sample_token(turn)
            seconds = time.perf_counter() - began
            self.sampling_s += seconds
            count_blocked(seconds)
            await asyncio.sleep(0)
        return turn.complete(self._engine.version)

    @asynccontextmanager
    async def fork(self, key: EpisodeKey, length: int | None = None) -> AsyncIterator["PlainSession"]:
        yield type(self)(self._engine, key, self._context[:length])

    @torch.no_grad()
    def _sample_token(self, turn: SampledTurn) -> None:
        engine, temperature = self._engine, turn.sampling.temperature
        logits = engine.model(input_ids=torch.tensor([self._context]), use_cache=False).logits[0, -1]
        logprobs = torch.log_softmax(logits.double() / (temperature or 1.0), dim=-1)
        token = int(logprobs.exp().multinomial(1, generator=self._generator) if temperature else logprobs.argmax())
        self._context.append(token)
        turn.ids.append(token)
        turn.logprobs.append(float(logprobs[token]))
        turn.label_tokens(engine.version)
        turn.stop = stop_reason(turn, engine.stop_ids, engine.decode)


class PlainEngine:
    """The smallest engine that trains: it has its own copy of the weights and samples one session at a time."""

    def __init__(self, model: Any, renderer: Renderer, options: EngineOptions) -> None:
        self.model, self.version = deepcopy(model).requires_grad_(False), 0
        self.model.set_attn_implementation("sdpa")
        self.stop_ids, self.decode = renderer.stop_ids, renderer.decode

    @asynccontextmanager
    async def open(self, key: EpisodeKey) -> AsyncIterator[PlainSession]:
        yield PlainSession(self, key)

    async def publish(self, version: int, weights: WeightSource) -> None:
        copy_parameters(self.model, weights)
        self.version = version

    async def sleep(self) -> None:
        pass

    def stats(self) -> EngineStats:
        return EngineStats()
