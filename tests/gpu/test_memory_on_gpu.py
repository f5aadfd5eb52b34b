"""Optimizer states on the host, recomputation and cache release on a GPU. `make test-gpu` runs these."""

import asyncio
from pathlib import Path

import pytest
import torch
from torch import nn

from active_plan_for_tests import learnt
from models_for_tests import random_model
from runs_for_tests import quiet, small
from talks_for_tests import key, prompt, run_talks, text_of
from turnwise.core.protocols import Sampling
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers, recompute_layers
from turnwise.record.run_folder import RunFolder
from turnwise.run.train import train
from turnwise.training.optimizer import Optimizer, OptimizerSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: make test-gpu runs this where there is one"),
]

SHAPES = ((70, 50), (50,), (300, 40), (11,), (64, 64), (2,))


def trained(*, on_host: bool, steps: int = 4) -> tuple[list[nn.Parameter], Optimizer]:
    """Chunks of 4,000 numbers: several per step; the third parameter is larger than one chunk."""
    chance = torch.Generator().manual_seed(0)
    own = [nn.Parameter(torch.randn(shape, generator=chance).cuda().bfloat16()) for shape in SHAPES]
    settings = OptimizerSettings(learning_rate=0.01, weight_decay=0.1, max_grad_norm=1.0)
    optimizer = Optimizer(own, settings, lambda _: 1.0, on_host=on_host, chunk=4000)
    for step in range(steps):
        for each in own:
            (each.float() * torch.randn(each.shape, generator=chance).cuda()).sum().backward()
        assert optimizer.step(step)[1]
    return own, optimizer


def test_gpu_optimizer_on_host_takes_the_same_steps() -> None:
    (ours, host), (theirs, device) = trained(on_host=True), trained(on_host=False)
    assert {each.device.type for each in host.parameters} == {"cpu"}
    assert {each.device.type for each in device.parameters} == {"cuda"}
    for number, (one, other) in enumerate(zip(host.parameters, device.parameters, strict=True)):
        torch.testing.assert_close(one.data, other.data.cpu(), atol=1e-5, rtol=1e-5)
        assert torch.equal(ours[number].cpu(), one.data.bfloat16()), "the model shows its master"
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("compiled", [False, True])
def test_gpu_recomputation_gives_the_same_gradients(compiled: bool) -> None:
    found = []
    for recomputes in (False, True):
        model = random_model("llama", ATTENTION).cuda().bfloat16()
        if compiled:
            compile_layers(model)
        if recomputes:
            recompute_layers(model)
        found.append(learnt(model))
    for name, grad in found[0][2].items():
        torch.testing.assert_close(found[1][2][name], grad, atol=0.02 * float(grad.abs().max()), rtol=0.02)


def test_gpu_sleep_releases_memory_and_keeps_samples() -> None:
    model = random_model("llama", ATTENTION).cuda()
    settings = {"slots": 8, "stop_ids": [1], "decode": text_of}
    runner = build_paged_runner(model, **settings, longest=320, pages=4000)  # type: ignore[arg-type]
    engine = NativeEngine(model, **settings, runner=runner)  # type: ignore[arg-type]
    talks = [(key(seed), [prompt(seed, 70), prompt(seed + 50, 4)]) for seed in range(5)]
    first = run_talks(engine, talks, Sampling(max_tokens=9))
    awake, captured = torch.cuda.memory_allocated(), engine.stats().capture_s
    assert captured > 0
    asyncio.run(engine.sleep())
    pages = 4000 * 64 * 2 * 3 * 2 * 16 * 4
    assert torch.cuda.memory_allocated() <= awake - pages
    assert [[each.ids for each in said] for said in run_talks(engine, talks, Sampling(max_tokens=9))] == [
        [each.ids for each in said] for said in first
    ]
    assert engine.stats().capture_s > captured


def test_gpu_run_with_all_memory_options_trains(tmp_path: Path) -> None:
    given = {"train__optimizer_state": "host", "train__recompute": "on", "system__keep_cache": "off"}
    summary = train(small(tmp_path, train__steps=3, **given), console=quiet())
    assert summary["finished"]
    steps = [row for row in RunFolder.open(tmp_path / "run").read_metrics() if "rollout/episodes" in row]
    assert all(row["time/capture_s"] > 0 for row in steps)
