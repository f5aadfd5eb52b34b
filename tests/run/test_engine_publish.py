"""Training through engines with weights of their own: `publish` is what keeps them at the learner's."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from runs_for_tests import learnt, metrics, quiet, small
from turnwise.concurrency.loop_clock import count_blocked
from turnwise.core.protocols import Completion, Engine, EngineStats, Sampling, WeightSource
from turnwise.core.task import EpisodeKey
from turnwise.engine.engines import ENGINES, EngineKind
from turnwise.engine.options import EngineOptions
from turnwise.engine.turn import SampledTurn, stop_reason
from turnwise.models.weights import copy_parameters
from turnwise.record.run_folder import RunFolder
from turnwise.render.renderer import Renderer
from turnwise.run.train import train


class CopyEngine:
    """Generates by a native engine over a copy of the model, which only `publish` brings up to date."""

    def __init__(self, model: Any, renderer: Renderer, options: EngineOptions) -> None:
        self._model = deepcopy(model).requires_grad_(False)
        self._engine = ENGINES["native"].build(self._model, renderer, options)
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

    def __init__(self, engine: "PlainEngine", key: EpisodeKey) -> None:
        self._engine, self._context = engine, list[int]()
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


def run_with(engine: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: Any) -> list[Engine]:
    """Train with this engine; returns the engines that were built."""
    built: list[Engine] = []

    def build(model: Any, renderer: Renderer, options: EngineOptions) -> Engine:
        built.append(engine(model, renderer, options))
        return built[-1]

    monkeypatch.setitem(ENGINES, "test", EngineKind(build=build, reads_images=lambda settings: False))
    train(small(folder, engine__kind="test", **settings), console=quiet())
    return built


def test_engine_with_a_copy_of_the_weights_trains_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"train__steps": 2, "eval__every": 1, "eval__episodes": 2}
    train(small(tmp_path / "shared", **shared), console=quiet())
    built = run_with(CopyEngine, monkeypatch, tmp_path / "copied", **shared)
    ours, theirs = (learnt(tmp_path / name / "run", step=2) for name in ("shared", "copied"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    fresh = [row["train/mismatch"] for row in metrics(tmp_path / "copied" / "run") if "train/mismatch" in row]
    assert max(fresh) < 1e-4
    assert not any("engine/published_mb" in row for row in metrics(tmp_path / "shared" / "run"))
    assert built[0].published == [0, 1, 2]  # type: ignore[attr-defined]
    assert all(torch.equal(value, ours[name]) for name, value in built[0]._model.named_parameters())  # type: ignore[attr-defined]


def test_engine_that_ignores_publish_is_seen_in_the_mismatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"train__steps": 2, "train__learning_rate": 3e-3, "eval__every": 0, "eval__episodes": 1}
    run_with(ForgetfulEngine, monkeypatch, tmp_path, **settings)
    first, second = (row["train/mismatch"] for row in metrics(tmp_path / "run") if "train/mismatch" in row)
    assert first < 1e-4 < second


def test_plain_engine_with_its_own_weights_trains_through_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with(PlainEngine, monkeypatch, tmp_path, train__steps=2, eval__episodes=2)
    rows = [row for row in metrics(tmp_path / "run") if "train/mismatch" in row]
    assert len(rows) == 2 and max(row["train/mismatch"] for row in rows) < 1e-4
    folder = RunFolder.open(tmp_path / "run")
    versions = {
        (entry["step"], turn["policy_version"])
        for entry in folder.read_index()
        for turn in folder.read_trajectory(entry)["turns"]
    }
    assert versions == {(1, 0), (2, 1)}
