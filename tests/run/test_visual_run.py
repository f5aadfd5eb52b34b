"""Training from pixels: tiny_vlm runs, resumes with the same bits, and learns to tell images apart."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from runs_for_tests import learnt, metrics, quiet, rewind, small
from turnwise.core.errors import UserError
from turnwise.core.messages import Exchange, user
from turnwise.data.demonstrations import build_demonstration
from turnwise.data.packing import pack, unpack
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import load_model
from turnwise.models.loading.lora import RUN_BASE
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import trajectory_from_row
from turnwise.render.renderer import Renderer
from turnwise.run.api import Run
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.load_policy import load_policy
from turnwise.run.train import train
from turnwise.training.learner import token_logprobs
from vision_models_for_tests import plain_image

SETTINGS: dict[str, Any] = {
    "env__kind": "frozen_lake",
    "env__params__observation": "image",
    "env__params__cell_pixels": 8,
    "env__params__max_turns": 3,
    "env__params__max_actions_per_turn": 1,
    "model__name": "tiny_vlm",
    "model__warmup_steps": 2,
    "eval__episodes": 1,
    "eval__every": 0,
    "rollout__group_size": 2,
    "train__steps": 2,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, which is not changed."""
    folder = tmp_path_factory.mktemp("finished")
    train(small(folder, **SETTINGS), console=quiet())
    return folder / "run"


def test_visual_run_resumes_with_the_same_bits(finished: Path, tmp_path: Path) -> None:
    cut = rewind(finished, tmp_path, step=1)
    train(small(tmp_path, **SETTINGS), resume=True, console=quiet())
    first, second = learnt(finished, 2), learnt(cut, 2)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not changed_vision(finished, 2)
    assert all(row["train/mismatch"] < 1e-4 for row in metrics(finished) if "train/mismatch" in row)


def test_visual_run_trains_the_vision_tower_and_keeps_its_images(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(small(tmp_path, **SETTINGS | {"train__steps": 1, "model__train_vision": True}), console=quiet())
    assert changed_vision(run, 1)
    folder = RunFolder.open(run)
    turn = trajectory_from_row(folder.read_trajectory(next(iter(folder.read_index())))).turns[0]
    assert [(span.end - span.start) for span in turn.images] == [16]  # one token per cell of a 4x4 map
    assert all((run / "images" / f"{span.hash}.png").is_file() for span in turn.images)


def test_evaluate_of_a_visual_run_keeps_its_images(finished: Path, tmp_path: Path) -> None:
    result = Run(finished).evaluate(episodes=2, out=tmp_path / "seen", quiet=True)
    turns = [turn for trajectory in result.trajectories for turn in trajectory.turns]
    files = {f"{span.hash}.png" for turn in turns for span in turn.images}
    assert files
    assert files == {file.name for file in (tmp_path / "seen" / "images").iterdir()}


def changed_vision(run: Path, step: int) -> list[str]:
    """Return the parameters of the vision tower that training changed."""
    before, after = load_file(run / RUN_BASE / "model.safetensors"), learnt(run, step)
    return [name for name in before if "visual" in name and not torch.equal(before[name], after[name])]


def test_text_model_given_images_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="image"):
        train(small(tmp_path, **SETTINGS | {"model__name": "tiny"}), console=quiet())


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"lora__rank": 2}, {False}),
        ({"lora__rank": 2, "model__train_vision": True}, {True, False}),
        ({"lora__rank": 2, "model__train_vision": "only"}, {True}),
    ],
)
def test_adapter_is_on_the_chosen_part(settings: dict[str, Any], parts: set[bool], tmp_path: Path) -> None:
    """A part is True for the vision tower."""
    config = small(tmp_path, **SETTINGS | settings)
    loaded, _ = load_policy(config, EnvironmentMix(specs={}, entries=()), lambda done, total: None)
    assert {".visual." in name for name, each in loaded.model.named_parameters() if each.requires_grad} == parts


def test_tiny_vlm_learns_to_name_images() -> None:
    loaded = load_model("tiny_vlm", attn_implementation=ATTENTION, train_vision=True)
    renderer = Renderer(loaded.tokenizer, loaded.stop_ids, images=loaded.images)
    shown = {"Up": (255, 0, 0), "Down": (0, 0, 255), "Left": (0, 160, 0)}
    samples = [
        build_demonstration(0, [Exchange(messages=(user([plain_image(color)]),), answer=word)], renderer)
        for word, color in shown.items()
    ]
    optimizer, batch = torch.optim.AdamW(loaded.model.parameters(), lr=2e-3), pack(samples)
    for _ in range(25):
        logprobs, *_ = token_logprobs(loaded.model, batch)
        optimizer.zero_grad()
        (-logprobs.mean()).backward()
        optimizer.step()
    found = unpack(batch, token_logprobs(loaded.model, batch)[0].detach())
    assert all(float(each.sum().exp()) > 0.9 for each in found)
