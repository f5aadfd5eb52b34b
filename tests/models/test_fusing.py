"""Products of siblings made at once: the same numbers, the same parameters."""

import copy
from typing import Any

import pytest
import torch

from active_plan_for_tests import check_equal, learnt
from models_for_tests import FAMILIES, random_model
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.attention.operator import use_plan
from turnwise.models.attention.varlen import VarlenPlan
from turnwise.models.layers import fuse_projections, fused_linear


def logits(model: Any) -> torch.Tensor:
    ids = torch.arange(3, 40)[None]
    with torch.no_grad(), use_plan(VarlenPlan([37], [-1], torch.device("cpu"))):
        return model(input_ids=ids, position_ids=torch.arange(37)[None], use_cache=False).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_gradients_and_parameters_stay_as_they_were(family: str) -> None:
    plain, fused = random_model(family, ATTENTION), random_model(family, ATTENTION)
    saved = fuse_projections(fused)
    assert saved == {"gpt2": 0, "qwen2": 3, "qwen3 moe, experts": 6}.get(family, 9), "siblings without biases are found"
    torch.testing.assert_close(logits(fused), logits(plain))
    for (name, ours), (other, theirs) in zip(fused.named_parameters(), plain.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(ours, theirs)
    check_equal(learnt(fused), learnt(plain))


def test_changed_weights_are_felt() -> None:
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


def test_a_copy_has_weights_of_its_own() -> None:
    model = random_model("llama", ATTENTION)
    fuse_projections(model)
    before, twin = logits(model), copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    torch.testing.assert_close(logits(model), before)
    assert not torch.allclose(logits(twin), before)


def test_siblings_that_are_called_with_something_else_make_their_own_product() -> None:
    model = random_model("llama", ATTENTION)
    fuse_projections(model)
    attention = model.model.layers[0].self_attn
    one, other = torch.randn(1, 5, 64), torch.randn(1, 5, 64)
    with torch.no_grad():
        attention.q_proj(one)
        torch.testing.assert_close(attention.k_proj(other), other @ attention.k_proj.weight.t())


def test_weights_apart_are_multiplied_apart() -> None:
    weights, inputs = [torch.randn(4, 8), torch.randn(6, 8)], torch.randn(3, 8)
    torch.testing.assert_close(fused_linear(inputs, weights), torch.cat([inputs @ each.t() for each in weights], dim=1))
