"""Recomputed, fused and compiled layers compute what plain layers do."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from active_plan_for_tests import check_equal, learnt
from learners_for_tests import gradients, make_learner, random_groups, settings_of
from models_for_tests import FAMILIES, random_model
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.attention.operator import use_plan
from turnwise.models.attention.varlen import VarlenPlan
from turnwise.models.layers import Recomputed, decoder_layers, fuse_projections, fused_linear, recompute_layers

LENGTHS = (9, 5)


def backward(model: Any, plan: VarlenPlan | None = None) -> dict[str, Tensor]:
    """Return gradients by name. The plan is active in both passes, as in the learner on a GPU."""
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
def test_recompute_layers_keeps_gradients(family: str) -> None:
    plain, recomputed = random_model(family, ATTENTION), random_model(family, ATTENTION)
    assert recompute_layers(recomputed) == len(decoder_layers(plain) or []) - 1
    assert same(backward(recomputed), backward(plain))


def test_recompute_layers_runs_all_layers_but_the_last_twice() -> None:
    counts = []
    for recomputes in (False, True):
        model, plan = random_model("llama", ATTENTION), Counting()
        if recomputes:
            recompute_layers(model)
        backward(model, plan)
        counts.append(plan.forwards)
    assert counts == [3, 3 + 2]


def test_recompute_layers_works_on_compiled_layers() -> None:
    """All layers have one class, so that they share the compilation."""
    plain, recomputed = random_model("llama", ATTENTION), random_model("llama", ATTENTION)
    for layer in decoder_layers(recomputed) or []:
        layer.compile(backend="aot_eager", dynamic=None)
    recompute_layers(recomputed)
    assert len({type(layer) for layer in (decoder_layers(recomputed) or [])[:-1]}) == 1
    plan = Counting()
    assert same(backward(recomputed, plan), backward(plain))
    assert plan.forwards == 5
    torch._dynamo.reset()


def test_recompute_layers_saves_less_for_backward() -> None:
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


def test_recomputed_layers_run_without_gradients() -> None:
    model, ids = random_model("llama", ATTENTION), torch.arange(8)[None]
    recompute_layers(model)
    with torch.no_grad(), use_plan(VarlenPlan([8], [-1], torch.device("cpu"))):
        assert not model.base_model(input_ids=ids, position_ids=ids, use_cache=False).last_hidden_state.requires_grad


def test_recompute_layers_is_idempotent_and_copied() -> None:
    model = random_model("llama", ATTENTION)
    names = list(model.state_dict())
    recompute_layers(model)
    classes = [type(layer) for layer in decoder_layers(model) or []]
    recompute_layers(model)
    assert [type(layer) for layer in decoder_layers(model) or []] == classes
    assert [issubclass(each, Recomputed) for each in classes] == [True, True, False]
    copied = copy.deepcopy(model)
    assert [type(layer) for layer in decoder_layers(copied) or []] == classes
    assert list(model.state_dict()) == names
    assert same(backward(copied), backward(model))


@pytest.mark.parametrize("critic", ["no critic", "trunk", "head"])
def test_learner_gradients_with_recomputation_are_equal(critic: str) -> None:
    found = []
    for recompute in ("off", "on"):
        config = settings_of(critic, train__recompute=recompute)
        found.append(gradients(make_learner(config, moved=0.05), random_groups(), config))
    assert same(*found)
    assert any(bool(each.any()) for each in found[0].values())


def logits(model: Any) -> torch.Tensor:
    ids = torch.arange(3, 40)[None]
    with torch.no_grad(), use_plan(VarlenPlan([37], [-1], torch.device("cpu"))):
        return model(input_ids=ids, position_ids=torch.arange(37)[None], use_cache=False).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_fuse_projections_keeps_logits_gradients_and_parameters(family: str) -> None:
    plain, fused = random_model(family, ATTENTION), random_model(family, ATTENTION)
    saved = fuse_projections(fused)
    assert saved == {"gpt2": 0, "qwen2": 3, "qwen3 moe, experts": 6}.get(family, 9), (
        "projections without biases are fused"
    )
    torch.testing.assert_close(logits(fused), logits(plain))
    for (name, ours), (other, theirs) in zip(fused.named_parameters(), plain.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(ours, theirs)
    check_equal(learnt(fused), learnt(plain))


def test_fused_projections_follow_weight_changes() -> None:
    model = random_model("llama", ATTENTION)
    fuse_projections(model)
    before = logits(model)
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight.mul_(2)
    changed = random_model("llama", ATTENTION)
    with torch.no_grad():
        changed.model.layers[1].self_attn.v_proj.weight.mul_(2)
    assert not torch.allclose(logits(model), before)
    torch.testing.assert_close(logits(model), logits(changed))


def test_fused_model_copy_has_its_own_weights() -> None:
    model = random_model("llama", ATTENTION)
    fuse_projections(model)
    before, twin = logits(model), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    torch.testing.assert_close(logits(model), before)
    assert not torch.allclose(logits(twin), before)


def test_fused_follower_with_another_input_computes_its_own_output() -> None:
    model = random_model("llama", ATTENTION)
    fuse_projections(model)
    attention = model.model.layers[0].self_attn
    one, other = torch.randn(1, 5, 64), torch.randn(1, 5, 64)
    with torch.no_grad():
        attention.q_proj(one)
        torch.testing.assert_close(attention.k_proj(other), other @ attention.k_proj.weight.t())


def test_fused_linear_with_separate_weights() -> None:
    weights, inputs = [torch.randn(4, 8), torch.randn(6, 8)], torch.randn(3, 8)
    torch.testing.assert_close(fused_linear(inputs, weights), torch.cat([inputs @ each.t() for each in weights], dim=1))
