"""The contract of `Engine` and its sessions over the engines that run here, and over engines that break it."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from engines_for_tests import CopyEngine, ForgetfulEngine, PlainEngine, PlainSession
from models_for_tests import random_model
from talks_for_tests import make_engine, prompt, text_of
from turnwise.core.protocols import Completion, Engine, Sampling
from turnwise.engine.options import EngineOptions
from turnwise.engine.scripted import ScriptedEngine
from turnwise.engine.vllm.engine import VllmEngine
from turnwise.engine.vllm.server import ServerReplica
from turnwise.engine.vllm.weights import FilePublisher
from turnwise.models.attention.interface import ATTENTION
from turnwise.testing import check_engine, check_policy
from vllm_server_for_tests import FakeVllm, fake_vllm

PROMPT, REPLY = prompt(1, 12), prompt(2, 5)


class Stops:
    """What an engine reads of a renderer."""

    stop_ids, grammars = (1,), None
    decode = staticmethod(text_of)


def built(cls: Callable[..., Any]) -> Callable[[], Engine]:
    return lambda: cls(random_model("llama", ATTENTION), Stops(), EngineOptions(slots=4, max_tokens=128))


def other_weights() -> Any:
    model = random_model("llama", ATTENTION)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return model


def check(make: Callable[[], Engine]) -> None:
    check_engine(make, PROMPT, REPLY, weights=random_model("llama", ATTENTION), others=other_weights())


@pytest.mark.parametrize(
    "make",
    [make_engine, lambda: make_engine(paged=True), built(CopyEngine), built(PlainEngine)],
    ids=["native", "paged", "copy", "plain"],
)
def test_engine_keeps_the_contract(make: Callable[[], Engine]) -> None:
    check(make)


def reply_of_weights(server: FakeVllm, body: dict[str, Any]) -> list[int]:
    """Return tokens that depend on the context and on the weights that were loaded."""
    shift = round(100 * sum(float(tensor.sum()) for tensor in server.weights.values()))
    return [(sum(body["token_ids"]) + shift) % 9 + 2, 1]


def test_vllm_engine_keeps_the_contract_with_a_fake_server() -> None:
    """`tests/vllm` puts the engine with the real vLLM through the contract."""
    weights, others = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    for model, value in ((weights, 0.01), (others, 0.02)):  # of which `reply_of_weights` samples different tokens
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, value)
    with fake_vllm(lambda body: reply_of_weights(server, body)) as server:

        def make() -> Engine:
            server.weights, server.version = dict(weights.named_parameters()), "default"
            replica = ServerReplica(server.url, max_tokens=64)
            return VllmEngine(weights, [replica], FilePublisher(weights), stop_ids=[1], decode=text_of)

        check_engine(make, PROMPT, REPLY, weights=weights, others=others)


def test_scripted_engine_keeps_the_contract_of_policies() -> None:
    check_policy(lambda: ScriptedEngine(lambda key, turn, ids: [len(ids) % 7 + 2, 1], [1]), PROMPT, REPLY)


class ChangedSession(PlainSession):
    """Changes each completion."""

    change: Any = None

    async def generate(self, ids: Any, sampling: Sampling, restart: bool = False) -> Completion:
        completion = await super().generate(ids, sampling, restart)
        return type(self).change(completion)


class ForgetsItsReply(PlainSession):
    async def generate(self, ids: Any, sampling: Sampling, restart: bool = False) -> Completion:
        before = [] if restart else list(self._context)
        completion = await super().generate(ids, sampling, restart)
        self._context[:] = [*before, *ids]
        return completion


class IgnoresRestart(PlainSession):
    async def generate(self, ids: Any, sampling: Sampling, restart: bool = False) -> Completion:
        return await super().generate(ids, sampling)


class ForksWithTheWholeContext(PlainSession):
    def fork(self, key: Any, length: int | None = None) -> Any:
        return super().fork(key)


class ForksWithoutContext(PlainSession):
    def fork(self, key: Any, length: int | None = None) -> Any:
        return super().fork(key, length or 0)


class ForksWithItsOwnContext(PlainSession):
    @asynccontextmanager
    async def fork(self, key: Any, length: int | None = None) -> Any:
        async with super().fork(key, length) as fork:
            if length is None:
                fork._context = self._context
            yield fork


def with_session(monkeypatch: pytest.MonkeyPatch, session: type) -> Callable[[], Engine]:
    monkeypatch.setattr("engines_for_tests.PlainSession", session)
    return built(PlainEngine)


@pytest.mark.parametrize(
    ("session", "rule"),
    [
        (ForgetsItsReply, "sampled tokens join the context"),
        (IgnoresRestart, "restart drops the context"),
        (ForksWithoutContext, "a fork keeps the context"),
        (ForksWithTheWholeContext, "a fork can keep the first tokens alone"),
        (ForksWithItsOwnContext, "a fork changes nothing of the session"),
    ],
)
def test_check_engine_finds_lost_contexts(monkeypatch: pytest.MonkeyPatch, session: type, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check(with_session(monkeypatch, session))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda done: replace(done, logprobs=done.logprobs[1:]), "each sampled token has"),
        (lambda done: replace(done, logprobs=tuple(-value + 1 for value in done.logprobs)), "at most 0"),
        (lambda done: replace(done, policy_versions=(0,) * (len(done.ids) + 1)), "an entry per token"),
        (lambda done: replace(done, temperature=0.0), "temperature is that of"),
        (lambda done: replace(done, policy_versions=(7,) * len(done.ids)), "version 0 before anything"),
    ],
)
def test_check_engine_names_the_broken_rule(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Completion], Completion], rule: str
) -> None:
    session = type("Session", (ChangedSession,), {"change": staticmethod(change)})
    with pytest.raises(AssertionError, match=rule):
        check(with_session(monkeypatch, session))


def test_check_engine_finds_one_that_ignores_what_is_published() -> None:
    with pytest.raises(AssertionError, match="version that was published last"):
        check(built(ForgetfulEngine))
