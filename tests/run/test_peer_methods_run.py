"""Losses, corrections and estimators of other systems through the whole loop: two steps that learn."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from runs_for_tests import learnt, metrics, quiet, rewind, small
from turnwise.algos.losses import ClipCov
from turnwise.algos.off_policy import OFF_POLICY_METRICS
from turnwise.run.train import train

CLIP_COV = {"algo__loss": "clip_cov", "algo__loss__share": 0.2}
METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "clip_cov": (CLIP_COV, "cov_fraction"),
    "kl_cov": ({"algo__loss": "kl_cov", "algo__loss__share": 0.2}, "cov_fraction"),
    "vespo": ({"algo__loss": "vespo", "algo__old_logprobs": "sampler"}, "vespo_weight"),
    "normalised weights": (
        {"algo__correction": "truncated", "algo__correction__level": "sequence", "algo__correction__normalise": True},
        "correction_weight",
    ),
    "rejection by maximum": (
        {
            "algo__rejection": "turn",
            "algo__rejection__statistic": "k3",
            "algo__rejection__pool": "max",
            "algo__rejection__bounds": (0.0, 0.5),
        },
        "rejected",
    ),
    "veto": ({"algo__rejection": "veto"}, "rejected"),
    "turn GAE, a row a turn": (
        {
            "algo__advantage": "step_gae",
            "algo__advantage__whiten": "token",
            "context": "turn",
            "env__kind": "frozen_lake",
            "env__params": {"max_turns": 3},
            "rollout__max_tokens": 700,
        },
        "explained_variance",
    ),
}
"""Settings, and a metric that only they bring."""


@pytest.fixture(autouse=True)
def band(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covariances of so few tokens are outside of the paper's band."""
    monkeypatch.setattr(ClipCov, "low", -9.0)
    monkeypatch.setattr(ClipCov, "high", 9.0)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.soak if name in ("kl_cov", "vespo") else ())  # test_algorithms_run.py too
        for name in METHODS
    ],
)
def test_peer_method_learns_in_the_loop(name: str, tmp_path: Path) -> None:
    settings, own = METHODS[name]
    base = {"algo__old_logprobs": "learner", "train__steps": 2, "eval__every": 0, "eval__episodes": 1}
    train(small(tmp_path, **base | settings), console=quiet())
    rows = [row for row in metrics(tmp_path / "run") if "rollout/success" in row]
    assert len(rows) == 2
    for row in rows:
        for key in ("policy_loss", "grad_norm", own, *OFF_POLICY_METRICS):
            assert math.isfinite(row[f"train/{key}"]), key
        assert abs(row["train/offpolicy_kl_k3"]) < 1e-6, "the engine samples from the learner's own weights"
        assert row["train/offpolicy_ppl"] > 1
        if own == "cov_fraction":
            assert row["train/cov_fraction"] == pytest.approx(0.2, abs=0.05)
    first, second = (learnt(tmp_path / "run", step) for step in (1, 2))
    assert any(not torch.equal(first[key], second[key]) for key in first if key.startswith("model."))


def test_clip_cov_resumes_with_the_same_random_choices(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    short = {**CLIP_COV, "train__steps": 2, "eval__every": 0, "eval__episodes": 1}
    train(small(whole, **short), console=quiet())
    rewind(whole / "run", stopped, step=1)
    torch.manual_seed(99)
    train(small(stopped, **short), resume=True, console=quiet())
    ours, theirs = (learnt(each / "run", step=2) for each in (stopped, whole))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
