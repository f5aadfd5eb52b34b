"""The losses of Tinker's API: values and gradients worked out by hand from the documented formulas."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tinker_for_tests import datum, read_logprobs, serving_tinker
from turnwise.config.load import build
from turnwise.run.tinker_serving import build_base_model
from turnwise.service.tinker.adapters import LoraShape, SharedModel
from turnwise.service.tinker.datums import Datum, ForwardBackward
from turnwise.service.tinker.errors import RequestFailure
from turnwise.service.tinker.losses import LOSSES, read_loss
from turnwise.service.tinker.messages import MESSAGES
from turnwise.service.tinker.trained_model import AdamParams, ModelSpec, TrainedModel

POLICY = [-1.0, -0.5, -2.0, -3.0]
SAMPLER = [-1.5, -0.6, -1.8, -3.4]
ADVANTAGES = [1.0, -1.0, 2.0, -0.5]
R0, R1, R2, R3 = math.exp(0.5), math.exp(0.1), math.exp(-0.2), math.exp(0.4)
S0, S1 = math.exp(0.3), math.exp(0.1)
"""Ratios of the two sequences, of two tokens each."""
GOLDEN = {
    "cross_entropy": ([0.0, 0.5, 1.0, 6.0], [0.0, -1.0, -0.5, -2.0]),
    "importance_sampling": ([-R0, R1, -2 * R2, 0.5 * R3], [-R0, R1, -2 * R2, 0.5 * R3]),
    "ppo": ([-1.2, R1, -2 * R2, 0.5 * R3], [0.0, R1, -2 * R2, 0.5 * R3]),
    "cispo": ([1.2, -0.5 * R1, 4 * R2, -1.8], [-1.2, R1, -2 * R2, 0.6]),
    "dro": ([1 + 0.00625, -0.5 + 0.00025, 4 + 0.001, -1.5 + 0.004], [-0.975, 1.005, -2.01, 0.52]),
    "gspo": ([-1.2, S0, -2 * S1, 0.5 * S1], [0.0, S0, -2 * S1, 0.5 * S1]),
}
"""Losses and gradients of the log-probabilities."""


@pytest.mark.parametrize("name", LOSSES)
def test_losses_have_golden_values_and_gradients(name: str) -> None:
    spec = LOSSES[name]
    inputs = {
        "logprobs": torch.tensor(SAMPLER),
        "advantages": torch.tensor(ADVANTAGES),
        "weights": torch.tensor([0.0, 1.0, 0.5, 2.0]),
        "sequence_ratio_mask": torch.ones(4),
    }
    inputs |= {setting: torch.full((4,), value) for setting, value in spec.defaults.items() if setting not in inputs}
    policy = torch.tensor(POLICY, requires_grad=True)
    losses = spec.function(policy, inputs, torch.tensor([0, 0, 1, 1]))
    losses.sum().backward()  # type: ignore[no-untyped-call]
    values, gradients = GOLDEN[name]
    assert losses.tolist() == pytest.approx(values, rel=1e-5)
    assert policy.grad is not None and policy.grad.tolist() == pytest.approx(gradients, rel=1e-5)


def test_gspo_ratio_is_of_the_masked_tokens() -> None:
    inputs = {
        "logprobs": torch.tensor(SAMPLER),
        "advantages": torch.ones(4),
        "sequence_ratio_mask": torch.tensor([0.0, 1.0, 0.0, 0.0]),
        "clip_low_threshold": torch.zeros(4),
        "clip_high_threshold": torch.full((4,), 9.0),
    }
    losses = LOSSES["gspo"].function(torch.tensor(POLICY), inputs, torch.tensor([0, 0, 1, 1]))
    assert losses.tolist() == pytest.approx([-R1, -R1, -1.0, -1.0])


def request(loss: str, config: dict[str, Any] | None = None, **inputs: list[float]) -> ForwardBackward:
    tensors = {name: torch.tensor(values) for name, values in inputs.items()}
    one = Datum(ids=torch.tensor([1, 2]), targets=torch.tensor([2, 3]), inputs=tensors)
    return ForwardBackward(data=(one,), loss=loss, config=config or {}, forward_only=False)


def test_read_loss_takes_settings() -> None:
    pair = [0.0, 0.0]
    _, settings = read_loss(request("ppo", {"clip_high_threshold": 1.5}, logprobs=pair, advantages=pair))
    assert settings == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.5}


@pytest.mark.parametrize(
    ("loss", "config", "inputs", "message"),
    [
        ("ppo", {"beta": 1.0}, ("logprobs", "advantages"), "its settings are clip_low_threshold"),
        ("dro", {"beta": "x"}, ("logprobs", "advantages"), "beta is x: send a finite number"),
        ("ppo", {}, ("logprobs",), "has no advantages, which ppo needs"),
        ("cross_entropy", {}, ("mask",), 'has "mask", which cross_entropy does not use'),
        ("kto", {}, (), 'Unknown loss_fn "kto"'),
        ("custom", {}, (), "loss_fn custom is not offered by turnwise: call forward_backward_custom"),
        ("stable_reinforce", {}, (), "its formula is not published"),
    ],
)
def test_read_loss_refuses(loss: str, config: dict[str, Any], inputs: tuple[str, ...], message: str) -> None:
    with pytest.raises(RequestFailure, match=message):
        read_loss(request(loss, config, **{name: [0.0, 0.0] for name in inputs}))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> SharedModel:
    overrides = [("model.name", "tiny"), ("system.threads", "1")]
    base, _ = build_base_model(build({}, overrides), overrides, tmp_path_factory.mktemp("base"))
    return SharedModel(base.loaded)


def test_gradients_equal_those_of_the_plain_model(shared: SharedModel) -> None:
    ids, targets = torch.arange(10, 30), torch.arange(11, 31)
    weights = torch.linspace(0, 1, 20)
    model = TrainedModel(ModelSpec(shape=LoraShape(rank=4), seed=0), shared)
    with torch.no_grad():
        for name, parameter in model.parameters.items():
            if "lora_B" in name:
                parameter.fill_(0.01)
    data = (
        Datum(ids=ids, targets=targets, inputs={"weights": weights}),
        Datum(ids=ids[:7], targets=targets[:7], inputs={"weights": weights[:7]}),
    )
    model.forward_backward(ForwardBackward(data=data, loss="cross_entropy", config={}, forward_only=False))
    computed = {name: parameter.grad.clone() for name, parameter in model.parameters.items()}  # type: ignore[union-attr]
    model.drop_gradients()
    plain = model.model
    plain.set_attn_implementation("eager")
    try:
        for one in data:
            logprobs = plain(one.ids[None]).logits[0].log_softmax(-1).gather(1, one.targets[:, None])[:, 0]
            (-logprobs * one.inputs["weights"]).sum().backward()
    finally:
        plain.set_attn_implementation("turnwise")
    for name, parameter in model.parameters.items():
        torch.testing.assert_close(computed[name], parameter.grad, rtol=1e-3, atol=1e-5)
    model.close()


def test_optimizer_step_equals_adamw(shared: SharedModel) -> None:
    model = TrainedModel(ModelSpec(shape=LoraShape(rank=2, train_unembed=False), seed=0), shared)
    copies = {name: torch.nn.Parameter(value) for name, value in model.weights().items()}
    settings: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}
    plain = torch.optim.AdamW(copies.values(), **settings)
    params = AdamParams(learning_rate=0.01, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.1, grad_clip_norm=0.5)
    one = Datum(ids=torch.arange(9), targets=torch.arange(1, 10), inputs={})
    for _ in range(3):
        model.forward_backward(ForwardBackward(data=(one,), loss="cross_entropy", config={}, forward_only=False))
        for name, parameter in model.parameters.items():
            copies[name].grad = None if parameter.grad is None else parameter.grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(copies.values(), 0.5)
        plain.step()
        metrics = model.step(params)
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5) and metrics["grad_norm"] > 0.5
    for name, value in model.weights().items():
        torch.testing.assert_close(value, copies[name].data, rtol=1e-5, atol=1e-7)
    model.close()


def test_forward_leaves_no_gradient_and_targets_may_be_several(tmp_path: Path) -> None:
    ids = [5, 6, 7, 8]
    wide = np.array([[6, 1], [7, 2], [8, 3]])
    with serving_tinker(tmp_path) as client:
        model = client.create_model(client.open_session())
        scored = client.forward_backward(model, 1, [datum(ids)], "cross_entropy", forward_only=True)
        assert client.step(model, 2)["metrics"]["grad_norm"] == 0.0
        mixed = [datum(ids[:3], target_tokens=wide), datum(ids)]
        output = client.forward_backward(model, 3, mixed, "cross_entropy")
        assert client.step(model, 4)["metrics"]["grad_norm"] > 0
    assert isinstance(output, MESSAGES["ForwardBackwardOutput"])
    first, second = output.loss_fn_outputs
    assert list(first.fields["logprobs"].trailing_shape) == [2] and first.num_datums == second.num_datums == 1
    logprobs = read_logprobs(output)
    assert logprobs[[0, 2, 4]] == pytest.approx(read_logprobs(scored), abs=1e-5)
    assert logprobs[6:] == pytest.approx(read_logprobs(scored), abs=1e-5)
    assert output.metrics["loss:sum"] == pytest.approx(-float(logprobs.sum()), rel=1e-5)
