"""A run stops when its weights, gradients or advantages are not finite, before anything of them is saved."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from runs_for_tests import learnt, metrics, quiet, small
from turnwise.cli.main import main
from turnwise.core.errors import DivergedError
from turnwise.record.run_folder import RunFolder
from turnwise.run.train import train
from turnwise.training import loop
from turnwise.training.checkpoints import last_checkpoint
from turnwise.training.update import Update, update


@pytest.mark.parametrize("every", [1, 10])
def test_run_with_non_finite_weights_stops_and_saves_nothing_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    def diverge(learner: Any, estimated: Any, settings: Any, step: int, *others: Any) -> Update:
        learner.begin_step(replace(learner.settings, rate_scale=1e308 if step == 1 else 1.0))
        return update(learner, estimated, settings, step, *others)

    monkeypatch.setattr(loop, "update", diverge)
    with pytest.raises(DivergedError, match=r"^the weights are not finite after .* at learning rate 1e\+305"):
        train(small(tmp_path, checkpoint__every=every, eval__every=0, eval__episodes=2), console=quiet())
    run = tmp_path / "run"
    assert [row["step"] for row in metrics(run) if "rollout/success" in row] == [1]
    saved = sorted(each.name for each in (run / "checkpoints").glob("*"))
    assert saved == (["step_000001"] if every == 1 else [])
    if every == 1:
        assert last_checkpoint(run / "checkpoints").name == "step_000001"
        assert all(bool(tensor.isfinite().all()) for tensor in learnt(run, step=1).values())


FUNCTIONS = """
    from typing import ClassVar

    import torch
    import turnwise as tw

    calls = 0

    def nan_advantage(inputs):
        returns = (inputs.token_rewards * inputs.mask).sum(1, keepdim=True)
        return (returns / 0 * 0).expand(inputs.mask.shape)

    def late_advantage(inputs):
        global calls
        calls += 1
        advantages = torch.rand(inputs.mask.shape) - 0.5
        return advantages if calls < 2 else torch.where(inputs.turn_ids == 0, torch.inf, advantages)

    class nan_targets(tw.Advantage):
        needs_critic: ClassVar[bool] = True

        def compute(self, inputs):
            return tw.AdvantageResult(advantages=torch.ones_like(inputs.values), returns=inputs.values + torch.nan)

    def waves(inputs):
        return torch.arange(inputs.mask.numel()).reshape(inputs.mask.shape).cos()

    def noise(inputs):
        return torch.rand(inputs.mask.shape) - 0.5

    def nan_loss(inputs):
        return -inputs.advantages * inputs.policy_logprobs * torch.nan

    def steady_loss(inputs):
        return -inputs.advantages * inputs.policy_logprobs

    def failing_loss(inputs):
        global calls
        calls += 1
        if calls == 8:
            raise ValueError("once")
        return steady_loss(inputs)

    def nan_gradient(inputs):
        return (inputs.policy_logprobs - inputs.policy_logprobs.detach()).sqrt()
"""

Train = Callable[..., int]


@pytest.fixture
def train_with(tmp_path: Path) -> Train:
    """Train on the bandit by the command line, with functions of a file."""
    (tmp_path / "my.py").write_text(dedent(FUNCTIONS), encoding="utf-8")
    small = ["--model.warmup_steps=2", "--rollout.groups=2", "--rollout.group_size=4", "--eval.episodes=2"]
    small += ["--rollout.max_new_tokens=12"]

    def train_with(*words: str, run: str = "run", **functions: str) -> int:
        given = [f"--algo.{name}={tmp_path}/my.py:{function}" for name, function in functions.items()]
        return main(["train", "bandit", f"--name={run}", f"--record.folder={tmp_path}", *small, *given, *words])

    return train_with


@pytest.mark.parametrize(
    ("name", "what", "step"),
    [("nan_advantage", "advantages", 1), ("late_advantage", "advantages", 2), ("nan_targets", "value targets", 1)],
)
def test_non_finite_advantage_of_a_file_stops_the_run_at_once(
    train_with: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, what: str, step: int
) -> None:
    assert train_with("--train.steps=4", "--train.mini_batch=8", advantage=name) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("turnwise: ")]
    assert f"my.py:{name} gave {what} that are not finite" in line and f"sampled tokens in step {step}." in line
    assert [row["step"] for row in metrics(tmp_path / "run") if "rollout/success" in row] == list(range(1, step))


@pytest.mark.parametrize(
    ("name", "mini_batch", "stops_at", "cause"),
    [
        ("nan_loss", 8, 3, "algo.loss .*my.py:nan_loss returned NaN or infinity"),
        ("nan_loss", 4, 2, "algo.loss .*my.py:nan_loss returned NaN or infinity"),
        ("nan_gradient", 8, 3, "The losses are finite, but not their gradients: check algo.loss .*my.py:nan_gradient"),
    ],
)
def test_three_skipped_steps_in_a_row_stop_the_run_with_the_cause(
    train_with: Train,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    mini_batch: int,
    stops_at: int,
    cause: str,
) -> None:
    words = ["--train.steps=6", f"--train.mini_batch={mini_batch}", "--checkpoint.every=1"]
    assert train_with(*words, advantage="noise", loss=name) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("turnwise: ")]
    start = f"3 optimizer steps in a row were skipped, the last one in step {stops_at}: their gradients were not finite"
    assert line.startswith(f"turnwise: {start}.")
    run = RunFolder.open(tmp_path / "run")
    rows = [row for row in run.read_metrics() if "rollout/success" in row]
    assert [row["train/skipped_steps"] for row in rows] == [
        (8 / mini_batch) * (index + 1) for index in range(len(rows))
    ]
    assert not (run.path / f"checkpoints/step_{stops_at:06d}").exists()
    first, last = run.read_alarms()
    assert first["step"] == 1 and first["text"].startswith("the gradient is not finite: an optimizer step was skipped")
    assert last["step"] == stops_at and last["text"].startswith(start)
    assert re.search(cause, line) and re.search(cause, last["text"])


def test_loss_that_fails_within_a_step_saves_nothing_of_it(
    train_with: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second mini-batch of step 4 fails, when the first one has changed the weights."""
    settings = ["--train.steps=5", "--train.mini_batch=4", "--checkpoint.every=2"]
    assert train_with(*settings, run="whole", advantage="waves", loss="steady_loss") == 0
    assert train_with(*settings, advantage="waves", loss="failing_loss") == 2
    assert "failing_loss failed: ValueError: once at my.py:" in capsys.readouterr().err
    run = tmp_path / "run"
    assert [row["step"] for row in metrics(run) if "rollout/success" in row] == [1, 2, 3]
    assert [path.name for path in (run / "checkpoints").iterdir() if path.name != "best"] == ["step_000002"]
    assert main(["train", "--resume", str(run)]) == 0
    ours, whole = learnt(run, step=5), learnt(tmp_path / "whole", step=5)
    assert all(torch.equal(ours[name], whole[name]) for name in whole)
