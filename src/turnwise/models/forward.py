"""A model's logits, and the hidden states they are made from, at chosen positions of a packed batch.

On a GPU rows are laid out for attention once for all forwards and backwards over a batch: `laid_out`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from turnwise.core.samples import Batch
from turnwise.models.attention_op import attending
from turnwise.models.last_layer import last_layer, last_layer_only_at
from turnwise.models.packed import PackedPlan
from turnwise.models.varlen import VarlenPlan


def packed_logits(model: Any, batch: Batch, keep: Tensor) -> tuple[Tensor, Tensor]:
    """(logits [K, V], hidden [K, H]) at positions `keep` of the packed tokens; logits of other tokens are never made.

    The model's own forward makes the logits, so scales and soft caps on them (Granite, Gemma-2) are applied.
    """
    with _input_of(model.get_output_embeddings()) as seen, last_layer_only_at(model, keep):
        output = model(**_inputs(model, batch, keep), logits_to_keep=keep)
    return output.logits[0], seen[0][0]


def by_plan_in_force(batch: Batch) -> bool:
    """Whether attention goes by the plan in force, as on a GPU, or by one that comes with each forward."""
    return batch.ids.is_cuda


@contextmanager
def laid_out(batch: Batch) -> Iterator[None]:
    """What runs over a batch runs inside this, its backward pass included."""
    if not by_plan_in_force(batch):
        yield
        return
    with attending(VarlenPlan(batch.lengths, batch.parents, batch.ids.device)):
        yield


def packed_hidden(trunk: Any, batch: Batch, keep: Tensor) -> Tensor:
    """Hidden states [K, H] of a model without a head."""
    if by_plan_in_force(batch):
        inputs = {"input_ids": batch.ids[None], "position_ids": batch.positions[None], "use_cache": False}
        return trunk(**inputs).last_hidden_state[0].index_select(0, keep)
    with last_layer_only_at(trunk, keep):
        return trunk(**_inputs(trunk, batch, keep)).last_hidden_state[0, keep]


def _inputs(model: Any, batch: Batch, keep: Tensor) -> dict[str, Any]:
    plan = PackedPlan(batch.lengths, batch.parents, batch.ids.device, read=keep, last=last_layer(model))
    return {"input_ids": batch.ids[None], "position_ids": batch.positions[None], "plan": plan, "use_cache": False}


@contextmanager
def _input_of(module: nn.Module) -> Iterator[list[Tensor]]:
    seen: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        hook.remove()
