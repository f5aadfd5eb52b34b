"""The learner's code path for GPUs, run on the CPU: active attention plan, log-probabilities in chunks."""

from importlib import import_module
from typing import Any

import pytest
import torch

from active_plan_for_tests import batch, check_equal, learnt
from models_for_tests import FAMILIES, random_model
from turnwise.models import head as head_module
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.attention.operator import use_plan
from turnwise.models.attention.varlen import VarlenPlan
from turnwise.models.head import OutputHead, head_logprobs, output_head
from turnwise.models.layers import copy_model, decoder_layers

WAY = [import_module(name) for name in ("turnwise.models.forward", "turnwise.training.learner")]
"""Modules that ask which path to take."""


@pytest.mark.parametrize("family", FAMILIES)
def test_active_plan_matches_packed_plan(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = learnt(random_model(family, ATTENTION))
    assert max(batch().parents) >= 0, "a prompt is shared"
    for module in WAY:
        monkeypatch.setattr(module, "uses_active_plan", lambda _: True)
    monkeypatch.setattr(head_module, "MAX_CHUNK_LOGITS", 7)
    monkeypatch.setattr(head_module, "MIN_ROWS", 7)  # seven rows per chunk
    check_equal(learnt(random_model(family, ATTENTION)), theirs)


def test_layers_share_one_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and differentiated as on a GPU, but not compiled to machine code."""
    theirs = learnt(random_model("llama", ATTENTION))
    for module in WAY:
        monkeypatch.setattr(module, "uses_active_plan", lambda _: True)
    model, graphs = random_model("llama", ATTENTION), []

    def count(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    output_head(model)
    torch._dynamo.reset()
    for layer in decoder_layers(model) or []:
        layer.compile(backend=count, fullgraph=True)
    check_equal(learnt(model), theirs)
    assert len(graphs) == 1


def test_attention_without_a_plan_raises() -> None:
    ids = torch.arange(3, 9)[None]
    with pytest.raises(RuntimeError, match="use_plan"):
        random_model("llama", ATTENTION)(input_ids=ids, position_ids=ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_output_head_is_found_in_every_family(family: str) -> None:
    assert output_head(random_model(family, ATTENTION)) is not None


def test_output_head_is_none_if_the_logits_differ() -> None:
    model = random_model("granite, scaled logits", ATTENTION)
    del model.config.logits_scaling  # as if the option had another name
    original = type(model).forward

    class Other(type(model)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            self.config.logits_scaling = 3.0
            try:
                return original(self, *args, **kwargs)
            finally:
                del self.config.logits_scaling

    model.__class__ = Other
    assert output_head(model) is None


def test_output_head_computes_float32_logits_from_bfloat16() -> None:
    chance = torch.Generator().manual_seed(0)
    weight, hidden = (torch.randn(size, 64, generator=chance).bfloat16() for size in (50, 9))
    logits = OutputHead(weight=weight, bias=None).logits(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, hidden.float() @ weight.float().t())
    assert (logits != logits.bfloat16()).any()


def test_head_logprobs_do_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = torch.Generator().manual_seed(0)
    weight, hidden = (torch.randn(size, 16, generator=chance) for size in (50, 23))
    targets, temperatures = torch.randint(0, 50, (23,), generator=chance), torch.rand(23, generator=chance) + 0.5

    def grads(rows: int) -> list[torch.Tensor]:
        monkeypatch.setattr(head_module, "MAX_CHUNK_LOGITS", 1)
        monkeypatch.setattr(head_module, "MIN_ROWS", rows)
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        head = OutputHead(weight=leaves[1], bias=None, scale=0.5, softcap=3.0)
        logprobs, entropy = head_logprobs(head, leaves[0], targets, temperatures)
        (logprobs.sum() - entropy.square().sum()).backward()
        return [logprobs, entropy, *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    for whole, parts in zip(grads(64), grads(5), strict=True):
        torch.testing.assert_close(whole, parts)


def test_copy_model_copies_weights_and_keeps_compilation() -> None:
    model, calls = random_model("llama", ATTENTION), []

    def count(graph: Any, _: Any) -> Any:
        calls.append(graph)
        return graph.forward

    plain = copy_model(model)
    assert all(layer._compiled_call_impl is None for layer in decoder_layers(plain) or [])
    for layer in decoder_layers(model) or []:
        layer.compile(backend=count)
    copied = copy_model(model)
    assert all(layer._compiled_call_impl is not None for layer in decoder_layers(copied) or [])
    assert not {each.data_ptr() for each in copied.parameters()} & {each.data_ptr() for each in model.parameters()}


def test_attention_backward_when_only_values_need_gradients() -> None:
    """The case of an adapter on v_proj only."""
    model = random_model("llama", ATTENTION).requires_grad_(False)
    chosen = model.model.layers[0].self_attn.v_proj.weight.requires_grad_(True)
    ids = torch.arange(3, 12)[None]
    with use_plan(VarlenPlan([9], [-1], torch.device("cpu"))):
        model(input_ids=ids, position_ids=torch.arange(9)[None]).logits.square().sum().backward()
    assert chosen.grad is not None and bool(chosen.grad.any())
