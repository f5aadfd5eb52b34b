"""Training through engines with weights of their own: `publish` is what keeps them at the learner's."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from runs_for_tests import learnt, metrics, quiet, small
from turnwise.core.protocols import Completion, Engine, EngineStats, Sampling, WeightSource
from turnwise.core.task import EpisodeKey
from turnwise.core.trajectory import Stop
from turnwise.engine.engines import ENGINES, EngineKind, EngineOptions
from turnwise.engine.scripted import ScriptedEngine
from turnwise.recipes.run import train
from turnwise.record.run_folder import RunFolder
from turnwise.render.renderer import Renderer


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
    """Samples with a plain forward pass over the whole context, and nothing of turnwise's engine."""

    sampling_s = 0.0

    def __init__(self, engine: "PlainEngine", key: EpisodeKey) -> None:
        self._engine, self._context = engine, list[int]()
        self._generator = torch.Generator().manual_seed(key.address % 2**63)

    @torch.no_grad()
    async def generate(self, ids: Sequence[int], sampling: Sampling, restart: bool = False) -> Completion:
        if restart:
            self._context.clear()
        self._context.extend(ids)
        new, logprobs, stop = list[int](), list[float](), Stop.LENGTH
        while len(new) < sampling.max_tokens and stop is Stop.LENGTH:
            logits = self._engine.model(input_ids=torch.tensor([self._context]), use_cache=False).logits[0, -1]
            distribution = torch.log_softmax(logits.double() / (sampling.temperature or 1.0), dim=-1)
            token = int(distribution.exp().multinomial(1, generator=self._generator))
            new.append(token)
            logprobs.append(float(distribution[token]))
            self._context.append(token)
            stop = Stop.EOS if token in self._engine.stop_ids else Stop.LENGTH
        versions = (self._engine.version,) * len(new)
        return Completion(
            ids=tuple(new),
            logprobs=tuple(logprobs),
            stop=stop,
            temperature=sampling.temperature or 1.0,
            policy_versions=versions,
        )


class PlainEngine(ScriptedEngine):
    """The scripted engine with a script that samples from its own copy of the weights."""

    def __init__(self, model: Any, renderer: Renderer, options: EngineOptions) -> None:
        super().__init__(lambda key, turn, ids: (), renderer.stop_ids)
        self.model, self.stop_ids, self.version = deepcopy(model).requires_grad_(False), renderer.stop_ids, 0
        self.model.set_attn_implementation("eager")

    def open(self, key: EpisodeKey) -> AbstractAsyncContextManager[Any]:
        return self._plain(key)

    @asynccontextmanager
    async def _plain(self, key: EpisodeKey) -> AsyncIterator[PlainSession]:
        yield PlainSession(self, key)

    async def publish(self, version: int, weights: WeightSource) -> None:
        self.version = version
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in weights.named_parameters():
                own[name].copy_(value)


def run_with(engine: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: Any) -> list[Engine]:
    """Train with this engine; returns the engines that were built."""
    built: list[Engine] = []

    def build(model: Any, renderer: Renderer, options: EngineOptions) -> Engine:
        built.append(engine(model, renderer, options))
        return built[-1]

    monkeypatch.setitem(ENGINES, "test", EngineKind(build=build))
    train(small(folder, engine__kind="test", **settings), console=quiet())
    return built


def test_engine_with_a_copy_of_the_weights_trains_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"train__steps": 3, "eval__every": 2}
    train(small(tmp_path / "shared", **shared), console=quiet())
    built = run_with(CopyEngine, monkeypatch, tmp_path / "copied", **shared)
    ours, theirs = (learnt(tmp_path / name / "run", step=3) for name in ("shared", "copied"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert built[0].published == [0, 1, 2, 3]  # type: ignore[attr-defined]
    assert all(torch.equal(value, ours[name]) for name, value in built[0]._model.named_parameters())  # type: ignore[attr-defined]


def test_engine_that_ignores_publish_is_seen_in_the_mismatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"train__steps": 4, "train__learning_rate": 3e-3}
    run_with(CopyEngine, monkeypatch, tmp_path / "fresh", **settings)
    run_with(ForgetfulEngine, monkeypatch, tmp_path / "stale", **settings)
    fresh, stale = (
        [row["train/mismatch"] for row in metrics(tmp_path / name / "run") if "train/mismatch" in row]
        for name in ("fresh", "stale")
    )
    assert max(fresh) < 1e-4 < stale[-1]


def test_scripted_engine_with_its_own_weights_trains_through_the_loop(
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
