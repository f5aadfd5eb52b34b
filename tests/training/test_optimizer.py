import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from turnwise.core.errors import DivergedError
from turnwise.training.optimizer import Optimizer, OptimizerSettings, Schedule, check_finite


def schedule(kind: str, *, total: int = 10, warmup: int = 0, final: float = 0.0) -> Schedule:
    return Schedule(kind=kind, total_steps=total, warmup_steps=warmup, final_share=final)  # type: ignore[arg-type]


def test_schedule_shares() -> None:
    assert [schedule("constant").share(step) for step in (0, 5, 100)] == [1.0, 1.0, 1.0]
    linear = schedule("linear", total=4)
    assert [linear.share(step) for step in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    cosine = schedule("cosine", total=4, final=0.2)
    expected = [0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(5)]
    assert [cosine.share(step) for step in range(5)] == pytest.approx(expected)
    assert expected[0] == 1.0 and expected[-1] == pytest.approx(0.2)
    rising = schedule("linear", total=6, warmup=3)
    assert [rising.share(step) for step in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 2 / 3, 1 / 3])


@settings(max_examples=50)
@given(
    kind=st.sampled_from(["constant", "linear", "cosine"]),
    total=st.integers(1, 50),
    warmup=st.integers(0, 60),
    final=st.floats(0, 1),
)
def test_schedule_rises_once_and_is_never_zero_in_the_warm_up(kind: str, total: int, warmup: int, final: float) -> None:
    shares = [schedule(kind, total=total, warmup=warmup, final=final).share(step) for step in range(total + warmup + 2)]
    assert all(0 <= share <= 1 for share in shares)
    rising, falling = shares[: warmup + 1], shares[warmup:]
    assert rising == sorted(rising) and rising[0] > 0
    assert all(a >= b - 1e-12 for a, b in pairwise(falling))
    assert kind == "constant" or shares[-1] == pytest.approx(final)


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 4), (5,))]


def optimizer(given: list[nn.Parameter], share: float = 1.0, max_grad_norm: float = 1.0) -> Optimizer:
    settings = OptimizerSettings(learning_rate=0.1, weight_decay=0.01, max_grad_norm=max_grad_norm)
    return Optimizer(given, settings, lambda step: share if step else 1.0)


def set_gradients(given: list[nn.Parameter], scale: float = 1.0, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in given:
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)


def test_optimizer_step_descends_in_place_at_the_scheduled_rate() -> None:
    moves = []
    for step in (0, 1):
        ours = parameters()
        places, before = [p.data_ptr() for p in ours], [p.detach().clone() for p in ours]
        mine = optimizer(ours, share=0.5)
        set_gradients(ours)
        signs = [parameter.grad.sign() for parameter in ours]
        norm, stepped = mine.step(step)
        assert stepped and norm > 1
        assert [p.data_ptr() for p in ours] == places
        assert all(parameter.grad is None for parameter in ours)
        moves.append([new - old for new, old in zip(ours, before, strict=True)])
        assert all((move.sign() == -sign).all() for move, sign in zip(moves[-1], signs, strict=True))
    for whole, half in zip(*moves, strict=True):
        torch.testing.assert_close(half, 0.5 * whole, atol=1e-5, rtol=1e-3)


def test_optimizer_clips_only_long_gradients() -> None:
    given = parameters()
    mine = optimizer(given, max_grad_norm=0.5)
    set_gradients(given, scale=100.0)
    norm, _ = mine.step(0)
    assert norm > 100
    first = sum(float(tensor.square().sum()) for name, tensor in mine.tensors().items() if name.endswith("exp_avg"))
    assert math.sqrt(first) == pytest.approx(0.1 * 0.5, rel=1e-4)  # the first moment is (1 - beta) times the gradient


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_optimizer_skips_non_finite_gradients(poison: float) -> None:
    given, spared = parameters(), parameters()
    mine, theirs = optimizer(given), optimizer(spared)
    for each, its in ((mine, given), (theirs, spared)):
        set_gradients(its)
        each.step(0)
    set_gradients(given, seed=2)
    given[0].grad[0, 0] = poison
    norm, stepped = mine.step(1)
    assert not stepped and not math.isfinite(norm)
    assert all(parameter.grad is None for parameter in given)
    for each, its in ((mine, given), (theirs, spared)):
        set_gradients(its, seed=3)
        each.step(2)
    assert all(torch.equal(a, b) for a, b in zip(given, spared, strict=True))


@pytest.mark.parametrize(
    ("dtype", "on_host", "muon"),
    [
        (torch.float32, False, None),
        (torch.float32, False, 3e38),
        (torch.bfloat16, False, None),
        (torch.float32, True, None),
    ],
)
def test_optimizer_raises_when_a_step_makes_weights_non_finite(
    dtype: torch.dtype, on_host: bool, muon: float | None
) -> None:
    given = [nn.Parameter(each.detach().to(dtype)) for each in parameters()]
    settings = OptimizerSettings(
        learning_rate=0.1 if muon else 1e308,
        weight_decay=0.01,
        max_grad_norm=1.0,
        muon_learning_rate=muon,
    )
    own = Optimizer(given, settings, lambda step: 1.0, on_host=on_host)
    with pytest.raises(DivergedError, match=r"not finite after an optimizer step at learning rate .*e\+3.*: lower"):
        for step in range(9):
            torch.stack([each.float().sum() for each in given]).sum().backward()
            own.step(step)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_check_finite_finds_one_bad_element(value: float) -> None:
    tensors = [torch.full((3, 5), 3e38), torch.zeros(0), torch.arange(4), torch.ones(7, dtype=torch.bfloat16)]
    check_finite(tensors, "now")
    check_finite([], "now")
    for number in (0, 3):
        bad = [each.clone() for each in tensors]
        bad[number].view(-1)[-1] = value
        with pytest.raises(DivergedError, match="the weights are not finite now"):
            check_finite(bad, "now")


def test_optimizer_state_round_trip() -> None:
    ours = parameters()
    mine = optimizer(ours)
    for seed in range(3):
        set_gradients(ours, seed=seed)
        mine.step(seed)
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    other = optimizer(copies)
    other.load_tensors({name: tensor.clone() for name, tensor in mine.tensors().items()})
    assert {name: tensor.dtype for name, tensor in other.tensors().items()} == {
        name: tensor.dtype for name, tensor in mine.tensors().items()
    }
    for each, its in ((mine, ours), (other, copies)):
        set_gradients(its, seed=9)
        each.step(3)
    assert all(torch.equal(a, b) for a, b in zip(ours, copies, strict=True))
    fresh = [nn.Parameter(parameter.detach().clone()) for parameter in parameters()]
    optimizer(fresh).load_tensors({})  # a run that was stopped before its first update


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda name, tensor: (name, tensor.flatten()[:-1] if tensor.ndim else tensor), r"has the shape \(11,\)"),
        (lambda name, tensor: (name.replace("0.1.", "0.2."), tensor), "of 2 parameters, and 2 are trained"),
        (lambda name, tensor: (f"1{name[1:]}", tensor), "the state of optimizer 2, and 1 trains"),
    ],
)
def test_optimizer_rejects_the_state_of_other_parameters(
    change: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]], problem: str
) -> None:
    mine = optimizer(given := parameters())
    set_gradients(given)
    mine.step(0)
    with pytest.raises(ValueError, match=problem):
        mine.load_tensors(dict(change(name, tensor) for name, tensor in mine.tensors().items()))
