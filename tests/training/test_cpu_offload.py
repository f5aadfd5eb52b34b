"""Optimiser states in the host's memory: the same steps, by another way."""

import math

import pytest
import torch
from torch import Tensor, nn

from turnwise.training.optimizer import EMBEDDING, Optimizer, OptimizerSettings

SHAPES = ((7, 5), (5,), (3, 4), (11,), (6, 6), (2,))


def parameters(dtype: torch.dtype = torch.bfloat16) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    found = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]
    setattr(found[0], EMBEDDING, True)
    return found


def make(own: list[nn.Parameter], *, on_host: bool, muon: bool = False, chunk: int = 20) -> Optimizer:
    """Pieces of 20 numbers: the first parameter is larger than one, the next two make one."""
    settings = OptimizerSettings(
        learning_rate=0.01,
        weight_decay=0.1,
        max_grad_norm=1.0,
        muon_learning_rate=0.02 if muon else None,
    )
    return Optimizer(own, settings, lambda step: 1 / (step + 1), on_host=on_host, chunk=chunk)


def add_gradients(own: list[nn.Parameter], seed: int, but: int = -1) -> None:
    """Two micro-batches; the parameter `but` gets none."""
    for micro in range(2):
        generator = torch.Generator().manual_seed(10 * seed + micro)
        for number, each in enumerate(own):
            weights = torch.randn(each.shape, generator=generator)
            if number != but:
                (each.float() * weights).sum().backward()


def trained(*, on_host: bool, steps: int = 3, **settings: object) -> tuple[list[nn.Parameter], Optimizer]:
    own = parameters(settings.pop("dtype", torch.bfloat16))  # type: ignore[arg-type]
    optimizer = make(own, on_host=on_host, **settings)  # type: ignore[arg-type]
    for step in range(steps):
        add_gradients(own, step)
        norm, stepped = optimizer.step(step)
        assert stepped and norm > 1
    return own, optimizer


def same(ours: list[nn.Parameter], theirs: list[nn.Parameter]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("muon", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("chunk", [1, 20, 1 << 20])
def test_offloaded_parameters_match_those_on_the_device(dtype: torch.dtype, muon: bool, chunk: int) -> None:
    ours, _ = trained(on_host=True, dtype=dtype, muon=muon, chunk=chunk)
    theirs, _ = trained(on_host=False, dtype=dtype, muon=muon)
    assert same(ours, theirs)
    assert not same(ours, parameters(dtype))


def test_offloaded_master_weights_and_moments_are_float32() -> None:
    own, optimizer = trained(on_host=True, dtype=torch.float32)
    places = {each.data_ptr() for each in own}
    tensors = optimizer.tensors()
    assert len([name for name in tensors if name.startswith("master.")]) == len(SHAPES)
    assert {each.dtype for each in tensors.values()} == {torch.float32}
    assert not places & {each.data_ptr() for each in tensors.values()}
    assert all(each.grad is None for each in (*own, *optimizer.parameters))


def test_storage_never_moves() -> None:
    own = parameters()
    places = [each.data_ptr() for each in own]
    optimizer = make(own, on_host=True)
    add_gradients(own, 0)
    optimizer.step(0)
    assert [each.data_ptr() for each in own] == places


def test_optimizer_leaves_parameters_without_a_gradient() -> None:
    own, before = parameters(), parameters()
    optimizer = make(own, on_host=True)
    add_gradients(own, 0, but=2)
    optimizer.step(0)
    stayed = [torch.equal(a, b) for a, b in zip(own, before, strict=True)]
    assert stayed == [number == 2 for number in range(len(SHAPES))]


def test_offloaded_optimizer_skips_non_finite_gradients() -> None:
    own, optimizer = trained(on_host=True)
    before = [each.detach().clone() for each in own]
    add_gradients(own, 7)
    optimizer.masters.gradients()[1][0] = math.nan
    norm, stepped = optimizer.step(3)
    assert not stepped and not math.isfinite(norm)
    assert all(torch.equal(a, b) for a, b in zip(own, before, strict=True))
    assert optimizer.masters.gradients() == []


@pytest.mark.parametrize("begins_on_host", [False, True])
@pytest.mark.parametrize("goes_on_on_host", [False, True])
def test_optimizer_state_moves_between_host_and_device(begins_on_host: bool, goes_on_on_host: bool) -> None:
    own, optimizer = trained(on_host=begins_on_host)
    kept = {name: value.clone() for name, value in optimizer.tensors().items()}
    copies = [nn.Parameter(each.detach().clone()) for each in own]
    setattr(copies[0], EMBEDDING, True)
    other = make(copies, on_host=goes_on_on_host)
    other.load_tensors(kept)
    assert all(torch.equal(value, kept[name]) for name, value in other.tensors().items())
    for each, its in ((optimizer, own), (other, copies)):
        add_gradients(its, 9)
        each.step(3)
    assert same(copies, own)


def test_small_steps_accumulate_in_offloaded_master_weights() -> None:
    """A bfloat16 weight of 1 cannot take one of them alone."""

    def after(steps: int) -> Tensor:
        own = [nn.Parameter(torch.ones(4, dtype=torch.bfloat16))]
        settings = OptimizerSettings(learning_rate=1e-3, weight_decay=0.0, max_grad_norm=1.0)
        optimizer = Optimizer(own, settings, lambda _: 1.0, on_host=True)
        for step in range(steps):
            own[0].float().sum().backward()
            optimizer.step(step)
        return own[0].detach().float()

    assert (after(1) == 1).all()
    assert (after(8) < 1).all()
