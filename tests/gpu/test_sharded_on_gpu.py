"""One rank of a sharded learner on a GPU, with NCCL: several need as many GPUs. `make test-gpu` runs these."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from learners_for_tests import learn, random_groups, settings_of
from models_for_tests import random_model
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.run.build_learner import build_learner, build_sharded_learner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: make test-gpu runs this where there is one"),
]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "head critic": ("head", {"system__compile": False}),
    "trunk critic, muon, recomputed": (
        "trunk",
        {"train__optimizer": "muon", "train__recompute": "on", "system__compile": False},
    ),
    "compiled": ("trunk", {}),
    "compiled and recomputed": ("no critic", {"train__recompute": "on"}),
    "offloaded": ("trunk", {"train__optimizer_state": "host", "system__compile": False}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("group")
def test_gpu_sharded_learner_trains_like_the_local_one(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    critic, changes = CASES[case]
    config = settings_of(critic, train__learning_rate=1e-3, model__device="cuda", **changes)
    sections, device = (config.algo, config.critic, config.train), torch.device("cuda")
    model = random_model("qwen2", ATTENTION, dtype)
    ours = build_sharded_learner(*sections, model, device=device, compiles=config.system.compile)
    theirs = build_learner(*sections, random_model("qwen2", ATTENTION, dtype).cuda())
    rel = 1e-2 if dtype == torch.float32 else 0.1
    for step in range(3):
        mine, other = (learn(each, random_groups(step), config, step=step, micro_tokens=60) for each in (ours, theirs))
        assert mine.keys() == other.keys()
        for name in ("policy_loss", "grad_norm", "entropy", "kl"):
            assert mine[name] == pytest.approx(other[name], rel=rel, abs=rel / 5), (step, name)
    weights = dict(ours.weights().named_parameters())
    for name, each in theirs.model.named_parameters():
        assert weights[name].dtype == dtype
        # Steps of Adam and Muon are of one size, whatever the gradient: where it is almost 0, rounding decides it.
        rate = (
            config.train.optimizer.learning_rate
            if config.train.optimizer.kind == "muon"
            else 10 * config.train.learning_rate
        )
        allowed = rate * (0.05 if dtype == torch.float32 else 0.1)
        assert float((weights[name] - each.detach()).abs().mean()) < allowed, name
    folder = tmp_path / "saved"
    folder.mkdir()
    ours.save_model(folder, tiny_tokenizer())
    ours.save_state(folder)
    state = {name: each.clone() for name, each in ours.state_dict()["tensors"].items()}
    learn(ours, random_groups(9), config, step=3)
    ours.load_state(folder, skipped_steps=0)
    for name, each in ours.state_dict()["tensors"].items():
        before, after = (value.to_local() if hasattr(value, "to_local") else value for value in (state[name], each))
        assert torch.equal(before, after), name
