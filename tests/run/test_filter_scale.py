"""A filtered step's learning rates follow the share of groups that passed the filter."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from learners_for_tests import learn, make_learner, random_groups, settings_of
from runs_for_tests import metrics, quiet, small
from turnwise.config.schema import Config
from turnwise.core.learner import StepSettings
from turnwise.run.build_learner import build_learner
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.load_policy import load_policy, model_loader
from turnwise.run.train import train
from turnwise.training.checkpoints import last_checkpoint, read_state, restore

HALF = {"algo__filter": "top_count", "algo__filter__count": 1}
"""One of two groups passes."""
ONE_STEP = {"train__steps": 1, "train__mini_batch": 8, "eval__every": 0}


def change_of_a_step(config: Config) -> dict[str, Tensor]:
    """Return how far a run of one optimizer step moved each tensor of the policy and the critic."""
    loaded, _ = load_policy(config, build_environment_mix(config.env, config.agent), lambda done, total: None)
    learner = build_learner(config.algo, config.critic, config.train, loaded.model)
    assert learner.critic is not None
    modules = {"policy": learner.model, "critic": learner.critic}
    before = {name: {key: value.clone() for key, value in each.state_dict().items()} for name, each in modules.items()}
    train(config, console=quiet())
    folder = last_checkpoint(Path(config.record.folder) / "run" / "checkpoints")
    restore(folder, learner, read_state(folder), model_loader(config.model))
    return {
        f"{name}.{key}": value - before[name][key]
        for name, each in modules.items()
        for key, value in each.state_dict().items()
    }


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.soak)])
def test_filter_scale_scales_the_first_step_of_policy_and_critic(optimizer: str, tmp_path: Path) -> None:
    def changed(scale: str) -> dict[str, Tensor]:
        settings: dict[str, Any] = {**HALF, **ONE_STEP, "train__optimizer": optimizer, "algo__filter__scale": scale}
        return change_of_a_step(small(tmp_path / scale, **settings))

    whole, part = changed("none"), changed("share")
    for module in ("policy", "critic"):
        moved, scaled = (
            torch.cat([change.flatten() for name, change in each.items() if name.startswith(module)])
            for each in (whole, part)
        )
        assert moved.abs().max() > 1e-4, module
        torch.testing.assert_close(scaled, 0.5 * moved, rtol=1e-3, atol=1e-6, msg=module)
    (row,) = (row for row in metrics(tmp_path / "share" / "run") if "train/grad_norm" in row)
    assert row["rollout/kept_share"] == 0.5
    assert row["train/learning_rate"] == row["train/critic_learning_rate"] == 5e-4
    assert row.get("train/muon_learning_rate") == (0.01 if optimizer == "muon" else None)


def test_learning_rates_compose_schedule_rollback_and_filter() -> None:
    """At step 2 of 4 a linear schedule is at 0.5; a rollback halves the policy's rate; the filter takes a quarter."""
    config = settings_of("trunk", train__steps=4, train__schedule="linear", critic__learning_rate=2e-2)
    learner = make_learner(config)
    learner.begin_step(StepSettings(step=0, rate_scale=0.5))
    found = learn(learner, random_groups(), config, step=2, rate_scale=0.25)
    assert found["learning_rate"] == pytest.approx(1e-2 * 0.5 * 0.5 * 0.25)
    assert found["critic_learning_rate"] == pytest.approx(2e-2 * 0.5 * 0.25)
