"""Parameters of 16 bits and the float32 masters that an optimiser moves."""

import copy

import pytest
import torch
from torch import nn

from turnwise.training.master_weights import MasterWeights
from turnwise.training.optimizer import Optimizer, OptimizerSettings

SETTINGS = OptimizerSettings(learning_rate=1e-3, weight_decay=0.0, max_grad_norm=1e9)


def layer(dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(0)
    made = nn.Linear(8, 4, bias=False)
    made.weight.data.fill_(1.0)
    return made.to(dtype)


def optimizer_of(model: nn.Module, **options: bool) -> Optimizer:
    return Optimizer(list(model.parameters()), SETTINGS, lambda _: 1.0, **options)


def push(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    for step in range(steps):
        for row in range(2):
            inputs = torch.full((1, 8), float(row + 1 + step)).to(next(model.parameters()).dtype)
            model(inputs).float().sum().backward()
        optimizer.step(step)


def test_small_steps_accumulate_in_a_bfloat16_master_weight() -> None:
    """Next to 1, bfloat16 has no number before 0.996."""
    model = layer(torch.bfloat16)
    where = model.weight.data_ptr()
    optimizer = optimizer_of(model)
    push(model, optimizer, 1)
    assert (model.weight == 1.0).all()
    push(model, optimizer, 4)
    assert (model.weight < 1.0).all()
    assert model.weight.data_ptr() == where
    torch.testing.assert_close(model.weight.float(), optimizer.parameters[0].detach(), atol=0.004, rtol=0)


def test_float32_parameters_have_no_master_weights() -> None:
    model = layer(torch.float32)
    optimizer = optimizer_of(model)
    assert optimizer.parameters[0] is model.weight
    assert optimizer.masters.tensors() == {}


def test_gradients_accumulate_in_float32_and_are_freed() -> None:
    model = layer(torch.bfloat16)
    masters = MasterWeights(list(model.parameters()))
    for value in (256.0, 1.0, 1.0):  # bfloat16 has no 257
        model(torch.full((1, 8), value).bfloat16()).float().sum().backward()
    assert model.weight.grad is None
    (total,) = masters.gradients()
    assert total.dtype == torch.float32
    assert (total == 258.0).all()
    masters.drop_gradients()
    assert masters.gradients() == []


def test_non_finite_gradient_changes_no_master_weight() -> None:
    model = layer(torch.bfloat16)
    optimizer = optimizer_of(model)
    model(torch.full((1, 8), float("inf")).bfloat16()).float().sum().backward()
    _, stepped = optimizer.step(0)
    assert not stepped
    assert (model.weight == 1.0).all()
    assert (optimizer.parameters[0] == 1.0).all()
    assert optimizer.masters.gradients() == []


@pytest.mark.parametrize("on_host", [False, True])
def test_master_weights_continue_after_save_and_load(on_host: bool) -> None:
    straight, other = layer(torch.bfloat16), layer(torch.bfloat16)
    first = optimizer_of(straight, on_host=on_host)
    push(straight, first, 3)
    saved, weights = copy.deepcopy(first.tensors()), copy.deepcopy(straight.state_dict())
    push(straight, first, 3)
    other.load_state_dict(weights)
    second = optimizer_of(other, on_host=on_host)
    second.load_tensors(saved)
    push(other, second, 3)
    assert torch.equal(straight.weight, other.weight)
    assert torch.equal(first.parameters[0], second.parameters[0])


def test_gradient_norm_is_of_the_gradients_before_clipping() -> None:
    model = layer(torch.bfloat16)
    settings = OptimizerSettings(learning_rate=1e-3, weight_decay=0.0, max_grad_norm=1.0)
    optimizer = Optimizer(list(model.parameters()), settings, lambda _: 1.0)
    model(torch.full((1, 8), 100.0).bfloat16()).float().sum().backward()
    norm, _ = optimizer.step(0)
    assert norm == pytest.approx(100 * 32**0.5)
