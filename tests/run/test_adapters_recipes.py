"""Each recipe of another package's environment trains, against the real package."""

from pathlib import Path

import pytest

from runs_for_tests import episodes, metrics, quiet
from turnwise.envs.registry import load_spec
from turnwise.recipes.presets import find_recipe
from turnwise.run.configure import configure
from turnwise.run.train import train

RECIPES = ("taxi", "reasoning_gym", "text_arena", "text_world")
SMALL = {
    "model.warmup_steps": "1",
    "rollout.groups": "2",
    "rollout.group_size": "2",
    "train.steps": "1",
    "train.mini_batch": "4",
    "eval.episodes": "1",
    "rollout.max_new_tokens": "16",
    "system.threads": "1",
}
FEW_TURNS = {"taxi": {"env.params.max_turns": "10"}, "text_arena": {"env.params.max_turns": "3"}}


@pytest.mark.soak  # docs/adapters.md trains each of them too
@pytest.mark.parametrize("name", RECIPES)
def test_adapter_recipe_trains(name: str, tmp_path: Path, optional_part) -> None:
    kind = load_spec(find_recipe(name).environment)
    if kind.install_command:
        optional_part(f"a package is missing: {kind.install_command}", *kind.cls.needs)
    overrides = [*(SMALL | FEW_TURNS.get(name, {})).items(), ("record.folder", str(tmp_path)), ("record.name", "run")]
    train(configure(name, overrides=overrides), console=quiet())
    run = tmp_path / "run"
    assert [row["step"] for row in metrics(run) if "train/policy_loss" in row] == [1]
    played = episodes(run)
    assert len(played) >= 4 and {entry["environment"] for entry in played} == {kind.name}
