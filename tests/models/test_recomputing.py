"""Activations made again: the same numbers, less to keep."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from learners_for_tests import gradients, make_learner, random_groups, settings_of
from models_for_tests import FAMILIES, random_model
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.attention.operator import use_plan
from turnwise.models.attention.varlen import VarlenPlan
from turnwise.models.layers import Recomputed, decoder_layers, recompute_layers

LENGTHS = (9, 5)


def backward(model: Any, plan: VarlenPlan | None = None) -> dict[str, Tensor]:
    """Gradients by name; the plan is in force for both passes, as in the learner on a GPU."""
    ids = torch.arange(sum(LENGTHS))[None] + 3
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    with use_plan(plan or VarlenPlan(LENGTHS, [-1, -1], torch.device("cpu"))):
        hidden = model.base_model(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
        hidden.square().sum().backward()
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


class Counting(VarlenPlan):
    def __init__(self) -> None:
        super().__init__(LENGTHS, [-1, -1], torch.device("cpu"))
        self.forwards = 0

    def forward(self, *args: Any) -> tuple[Tensor, Tensor]:
        self.forwards += 1
        return super().forward(*args)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_by_the_plan_in_force_are_the_same(family: str) -> None:
    plain, recomputed = random_model(family, ATTENTION), random_model(family, ATTENTION)
    assert recompute_layers(recomputed) == len(decoder_layers(plain) or []) - 1
    assert same(backward(recomputed), backward(plain))


def test_all_layers_but_the_last_run_twice() -> None:
    counts = []
    for recomputes in (False, True):
        model, plan = random_model("llama", ATTENTION), Counting()
        if recomputes:
            recompute_layers(model)
        backward(model, plan)
        counts.append(plan.forwards)
    assert counts == [3, 3 + 2]


def test_compiled_layers_are_made_again_too() -> None:
    """One class for all layers, so that they share what was compiled."""
    plain, recomputed = random_model("llama", ATTENTION), random_model("llama", ATTENTION)
    for layer in decoder_layers(recomputed) or []:
        layer.compile(backend="aot_eager", dynamic=None)
    recompute_layers(recomputed)
    assert len({type(layer) for layer in (decoder_layers(recomputed) or [])[:-1]}) == 1
    plan = Counting()
    assert same(backward(recomputed, plan), backward(plain))
    assert plan.forwards == 5
    torch._dynamo.reset()


def test_what_a_forward_keeps_is_its_input() -> None:
    sizes = []
    for recomputes in (False, True):
        model, kept = random_model("llama", ATTENTION), list[int]()
        if recomputes:
            recompute_layers(model)

        def keep(tensor: Tensor, kept: list[int] = kept) -> Tensor:
            kept.append(tensor.numel())
            return tensor

        ids = torch.arange(14)[None]
        with (
            use_plan(VarlenPlan([14], [-1], torch.device("cpu"))),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            model.base_model(input_ids=ids, position_ids=ids, use_cache=False)
        sizes.append(sum(kept))
    assert sizes[1] < 0.5 * sizes[0]


def test_without_gradients_nothing_is_different() -> None:
    model, ids = random_model("llama", ATTENTION), torch.arange(8)[None]
    recompute_layers(model)
    with torch.no_grad(), use_plan(VarlenPlan([8], [-1], torch.device("cpu"))):
        assert not model.base_model(input_ids=ids, position_ids=ids, use_cache=False).last_hidden_state.requires_grad


def test_it_is_done_once_and_copies_have_it_too() -> None:
    model = random_model("llama", ATTENTION)
    names = list(model.state_dict())
    recompute_layers(model)
    kinds = [type(layer) for layer in decoder_layers(model) or []]
    recompute_layers(model)
    assert [type(layer) for layer in decoder_layers(model) or []] == kinds
    assert [issubclass(kind, Recomputed) for kind in kinds] == [True, True, False]
    copied = copy.deepcopy(model)
    assert [type(layer) for layer in decoder_layers(copied) or []] == kinds
    assert list(model.state_dict()) == names
    assert same(backward(copied), backward(model))


@pytest.mark.parametrize("critic", ["no critic", "trunk", "head"])
def test_the_learner_finds_the_same_gradients(critic: str) -> None:
    found = []
    for recompute in ("off", "on"):
        config = settings_of(critic, train__recompute=recompute)
        found.append(gradients(make_learner(config, moved=0.05), random_groups(), config))
    assert same(*found)
    assert any(bool(each.any()) for each in found[0].values())
