"""Training through engines with weights of their own: `publish` is what keeps them at the learner's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engines_for_tests import CopyEngine, ForgetfulEngine, PlainEngine
from runs_for_tests import learnt, metrics, quiet, small
from turnwise.core.protocols import Engine
from turnwise.engine.engines import ENGINES
from turnwise.engine.options import EngineOptions
from turnwise.engine.settings import EngineSettings
from turnwise.record.run_folder import RunFolder
from turnwise.render.renderer import Renderer
from turnwise.run.train import train


def run_with(engine: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: Any) -> list[Engine]:
    """Train with this engine; returns the engines that were built."""
    built: list[Engine] = []

    class TestedEngine(EngineSettings, kind="test"):
        def build(self, model: Any, renderer: Renderer, options: EngineOptions) -> Engine:
            built.append(engine(model, renderer, options))
            return built[-1]

    monkeypatch.setitem(ENGINES, "test", TestedEngine)
    train(small(folder, engine="test", **settings), console=quiet())
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


OWN = """
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import turnwise as tw
from turnwise.engine.engines import Native

class Narrow(tw.EngineSettings):
    shares_weights: ClassVar[bool] = True
    sessions: int = 8

    def build(self, model, renderer, options):
        Path(__file__).with_name("built").write_text(f"{self.sessions} of {options.slots}")
        return Native().build(model, renderer, replace(options, slots=self.sessions))
"""


def test_engine_of_a_users_file_trains_with_its_settings(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    own = {"engine": f"{tmp_path}/own.py:Narrow", "engine__sessions": 2, "rollout__in_flight": 5}
    assert train(small(tmp_path, **own, train__steps=1, eval__episodes=1), console=quiet())["finished"]
    assert (tmp_path / "built").read_text() == "2 of 5"
    assert "sessions = 2" in (tmp_path / "run/config.toml").read_text()
