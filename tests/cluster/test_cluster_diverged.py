"""A run whose learner is a rank in Ray stops like a local one when what it trains on is not finite."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from runs_for_tests import metrics, quiet, small
from turnwise.core.errors import DivergedError, UserError
from turnwise.record.run_folder import RunFolder
from turnwise.run.train import train

FUNCTIONS = """
    import torch

    def nan_advantage(inputs):
        return torch.full(inputs.mask.shape, torch.nan)

    def noise(inputs):
        return torch.rand(inputs.mask.shape) - 0.5

    def nan_loss(inputs):
        return -inputs.advantages * inputs.policy_logprobs * torch.nan
"""


def train_on_a_rank(folder: Path, **functions: str) -> str:
    """Train with functions of a file; return the error that stopped the run."""
    (folder / "my.py").write_text(dedent(FUNCTIONS), encoding="utf-8")
    settings: dict[str, Any] = {f"algo__{name}": f"{folder}/my.py:{function}" for name, function in functions.items()}
    settings |= {"cluster__learners": 1, "train__steps": 6, "eval__every": 0, "eval__episodes": 2}
    with pytest.raises((DivergedError, UserError)) as stop:
        train(small(folder, **settings), console=quiet())
    return str(stop.value)


def test_advantage_that_is_not_finite_is_not_sent_to_a_rank(tmp_path: Path, ray_cluster: Any) -> None:
    reason = train_on_a_rank(tmp_path, advantage="nan_advantage")
    assert "my.py:nan_advantage gave advantages that are not finite" in reason and "in step 1." in reason
    assert not [row for row in metrics(tmp_path / "run") if "rollout/success" in row]


def test_three_skipped_steps_of_a_rank_stop_the_run_with_the_cause(tmp_path: Path, ray_cluster: Any) -> None:
    reason = train_on_a_rank(tmp_path, advantage="noise", loss="nan_loss")
    assert reason.startswith("3 optimizer steps in a row were skipped")
    assert "my.py:nan_loss returned NaN or infinity" in reason
    run = RunFolder.open(tmp_path / "run")
    assert max(row["train/skipped_steps"] for row in run.read_metrics() if "train/skipped_steps" in row) >= 1
    assert run.read_alarms()[-1]["text"].startswith("3 optimizer steps in a row were skipped")
