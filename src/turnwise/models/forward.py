"""Logits and hidden states of a model at chosen positions of a packed batch.

Most tokens of a trajectory are observations, whose output is not used. So logits are computed at chosen positions only,
and so is the last layer's feed-forward part: a token's logits need the keys and values of all tokens before it, but the
feed-forward output of that token alone. In a model of two layers this saves a third of the work, in one of thirty
hardly any.
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
from turnwise.models.vision.encoder import embed_images, place_rows
from turnwise.models.vision.whole_images import tokens_ahead


def packed_logits(model: Any, batch: Batch, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Return (logits [K, V], hidden [K, H]) at positions `keep` of the packed tokens.

    The model's own forward computes the logits, so its scales and soft caps on them (Granite, Gemma-2) apply.
    """
    layer = model.get_output_embeddings()
    with embed_images(model, batch.ids) as ids, capture_input(layer) as captured, restrict_last_layer(model, keep):
        output = model(**_inputs(model, batch, ids, keep), logits_to_keep=keep)
    return output.logits[0], captured[0][0]


def uses_active_plan(batch: Batch) -> bool:
    """Return True on a GPU: attention then follows the active plan, not one passed to the forward."""
    return batch.ids.is_cuda


@contextmanager
def batch_attention(model: Any, batch: Batch) -> Iterator[None]:
    """Activate the attention plan of a batch. Its forward and backward passes run in this block.

    Those of other models too, which attend to images as this one does.
    """
    if not uses_active_plan(batch):
        yield
        return
    ahead = tokens_ahead(model, batch.ids, batch.lengths)
    with use_plan(VarlenPlan(batch.lengths, batch.parents, batch.ids.device, ahead)):
        yield


def packed_hidden(trunk: Any, batch: Batch, keep: Tensor) -> Tensor:
    """Return the hidden states [K, H] of a model without a head at positions `keep`."""
    with embed_images(trunk, batch.ids) as ids:
        if uses_active_plan(batch):
            inputs = {"input_ids": ids[None], "position_ids": _positions(trunk, batch), "use_cache": False}
            return trunk(**inputs).last_hidden_state[0].index_select(0, keep)
        with restrict_last_layer(trunk, keep):
            return trunk(**_inputs(trunk, batch, ids, keep)).last_hidden_state[0, keep]


def _inputs(model: Any, batch: Batch, ids: Tensor, keep: Tensor) -> dict[str, Any]:
    ahead, last = tokens_ahead(model, batch.ids, batch.lengths), last_layer_index(model)
    plan = PackedPlan(batch.lengths, batch.parents, batch.ids.device, read=keep, last=last, ahead=ahead)
    return {"input_ids": ids[None], "position_ids": _positions(model, batch), "plan": plan, "use_cache": False}


def _positions(model: Any, batch: Batch) -> Tensor:
    return place_rows(model, batch.ids, batch.positions, batch.lengths, batch.parents)


@contextmanager
def capture_input(module: nn.Module) -> Iterator[list[Tensor]]:
    captured: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0]))
    try:
        yield captured
    finally:
        hook.remove()


@contextmanager
def restrict_last_layer(model: Any, keep: Tensor) -> Iterator[None]:
    """Run the last layer's feed-forward part at positions `keep` only; its output elsewhere is undefined."""
    feed_forward = _last_feed_forward(model)
    if feed_forward is None:
        yield
        return
    size = 0

    def select(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        nonlocal size
        size = inputs[0].shape[1]
        return inputs[0].index_select(1, keep), *inputs[1:]

    def scatter(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return torch.zeros_like(output[:, :1]).expand(-1, size, -1).index_copy(1, keep, output)

    hooks = [feed_forward.register_forward_pre_hook(select), feed_forward.register_forward_hook(scatter)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def last_layer_index(model: Any) -> int | None:
    """Return the index of the last layer if `restrict_last_layer` applies to the model, else None."""
    layers = decoder_layers(model)
    return None if layers is None or _last_feed_forward(model) is None else len(layers) - 1


def _last_feed_forward(model: Any) -> nn.Module | None:
    """Return the module, or None if it may not act on each token separately (a mixture of experts)."""
    layers = decoder_layers(model)
    feed_forward = getattr(layers[-1], "mlp", None) if layers is not None else None
    if feed_forward is None:
        return None
    experts = any(parameter.ndim > 2 for parameter in feed_forward.parameters())
    experts = experts or any(isinstance(module, nn.ModuleList) for module in feed_forward.modules())
    return None if experts else feed_forward
