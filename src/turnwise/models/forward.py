"""A model's logits, and the hidden states they are made from, at chosen positions of a packed batch.

On a GPU rows are laid out for attention once for all forwards and backwards over a batch: `batch_attention`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from turnwise.core.samples import Batch
from turnwise.models.attention.operator import use_plan
from turnwise.models.attention.packed import PackedPlan
from turnwise.models.attention.varlen import VarlenPlan
from turnwise.models.layers import decoder_layers


def packed_logits(model: Any, batch: Batch, keep: Tensor) -> tuple[Tensor, Tensor]:
    """(logits [K, V], hidden [K, H]) at positions `keep` of the packed tokens; logits of other tokens are never made.

    The model's own forward makes the logits, so scales and soft caps on them (Granite, Gemma-2) are applied.
    """
    with _capture_input(model.get_output_embeddings()) as seen, restrict_last_layer(model, keep):
        output = model(**_inputs(model, batch, keep), logits_to_keep=keep)
    return output.logits[0], seen[0][0]


def uses_active_plan(batch: Batch) -> bool:
    """Whether attention goes by the plan in force, as on a GPU, or by one that comes with each forward."""
    return batch.ids.is_cuda


@contextmanager
def batch_attention(batch: Batch) -> Iterator[None]:
    """What runs over a batch runs inside this, its backward pass included."""
    if not uses_active_plan(batch):
        yield
        return
    with use_plan(VarlenPlan(batch.lengths, batch.parents, batch.ids.device)):
        yield


def packed_hidden(trunk: Any, batch: Batch, keep: Tensor) -> Tensor:
    """Hidden states [K, H] of a model without a head."""
    if uses_active_plan(batch):
        inputs = {"input_ids": batch.ids[None], "position_ids": batch.positions[None], "use_cache": False}
        return trunk(**inputs).last_hidden_state[0].index_select(0, keep)
    with restrict_last_layer(trunk, keep):
        return trunk(**_inputs(trunk, batch, keep)).last_hidden_state[0, keep]


def _inputs(model: Any, batch: Batch, keep: Tensor) -> dict[str, Any]:
    plan = PackedPlan(batch.lengths, batch.parents, batch.ids.device, read=keep, last=last_layer_index(model))
    return {"input_ids": batch.ids[None], "position_ids": batch.positions[None], "plan": plan, "use_cache": False}


@contextmanager
def _capture_input(module: nn.Module) -> Iterator[list[Tensor]]:
    seen: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def restrict_last_layer(model: Any, keep: Tensor) -> Iterator[None]:
    """Inside, hidden states after the last layer are right at positions `keep` of the packed tokens, and only there."""
    part = _last_feed_forward(model)
    if part is None:
        yield
        return
    size = 0

    def choose(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        nonlocal size
        size = inputs[0].shape[1]
        return inputs[0].index_select(1, keep), *inputs[1:]

    def put_back(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return torch.zeros_like(output[:, :1]).expand(-1, size, -1).index_copy(1, keep, output)

    hooks = [part.register_forward_pre_hook(choose), part.register_forward_hook(put_back)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def last_layer_index(model: Any) -> int | None:
    """The number of the last layer where its feed-forward part is run only for some tokens; else None."""
    layers = decoder_layers(model)
    return None if layers is None or _last_feed_forward(model) is None else len(layers) - 1


def _last_feed_forward(model: Any) -> nn.Module | None:
    """None where it is not a plain function of one token's vector, as far as can be told: a mixture of experts."""
    layers = decoder_layers(model)
    part = getattr(layers[-1], "mlp", None) if layers is not None else None
    if part is None:
        return None
    plain = all(parameter.ndim <= 2 for parameter in part.parameters())
    return part if plain and not any(isinstance(each, nn.ModuleList) for each in part.modules()) else None
