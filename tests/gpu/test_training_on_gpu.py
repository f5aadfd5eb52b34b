"""Gradients and whole runs on a GPU. `make test-gpu` runs these."""

from pathlib import Path

import pytest
import torch

import turnwise as tw
from active_plan_for_tests import check_equal, learnt
from envs_for_tests import TwoUps
from models_for_tests import FAMILIES, random_model
from runs_for_tests import quiet, small
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers
from turnwise.record.run_folder import RunFolder
from turnwise.run.train import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: make test-gpu runs this where there is one"),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_gpu_gradients_match_the_cpu(family: str) -> None:
    check_equal(learnt(random_model(family, ATTENTION).cuda()), learnt(random_model(family, ATTENTION)))


@pytest.mark.parametrize("compiled", [False, True])
def test_gpu_flash_attention_gradients_point_the_same_way(compiled: bool) -> None:
    model = random_model("llama", ATTENTION).cuda().bfloat16()
    if compiled:
        compile_layers(model)
    ours, theirs = learnt(model), learnt(random_model("llama", ATTENTION))
    assert float((ours[0] - theirs[0]).abs().mean()) < 0.05
    for name, grad in theirs[2].items():
        cosine = torch.nn.functional.cosine_similarity(ours[2][name].flatten(), grad.flatten(), dim=0)
        assert float(cosine) > 0.98, name


def test_gpu_training_learns(tmp_path: Path) -> None:
    run = tw.train(
        env=TwoUps,
        steps=12,
        model__warmup_steps=40,
        rollout__groups=4,
        rollout__group_size=8,
        rollout__max_new_tokens=10,
        train__learning_rate=1e-3,
        train__mini_batch=16,
        eval__episodes=64,
        eval__temperature=1.0,
        record__folder=str(tmp_path),
    )
    assert run.summary["success_before"] <= 0.6
    assert run.summary["success_after"] >= 0.8
    (folder,) = tmp_path.iterdir()
    rows = RunFolder.open(folder).read_metrics()
    assert all(row["train/mismatch"] < 0.02 for row in rows if "train/mismatch" in row)


@pytest.mark.parametrize("settings", [{}, {"lora__rank": 4}, {"algo__advantage": "grpo", "system__compile": False}])
def test_gpu_critic_reference_adapter_and_resume(tmp_path: Path, settings: dict[str, object]) -> None:
    train(small(tmp_path, train__max_minutes=1e-9, **settings), console=quiet())
    train(small(tmp_path, **settings), resume=True, console=quiet())
    rows = RunFolder.open(tmp_path / "run").read_metrics()
    assert [row["step"] for row in rows if "train/policy_loss" in row] == [1, 2, 3]
