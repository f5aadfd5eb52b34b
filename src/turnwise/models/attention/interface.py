"""One attention function for every Hugging Face causal LM. A plan decides which tokens attend to which.

transformers passes keyword arguments of `model(...)` down to the attention function of each layer. So
`model(ids, position_ids=..., plan=plan)` runs the model on tokens packed into one row, and the plan decides which of
them see each other: `PackedPlan` for the learner, `SlotPlan` for the engine's cache. On a GPU the layers are compiled,
and the plan is not an argument of the call but the active one (`operator.use_plan`).
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from turnwise.models.attention.operator import attend_by_active_plan

ATTENTION = "turnwise"
"""Name under which the attention function is registered: `attn_implementation="turnwise"`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """Attention of one layer over N packed tokens."""

    layer: int
    query: Tensor  # [N, H, D]
    key: Tensor  # [N, KV, D]
    value: Tensor  # [N, KV, D]
    scale: float
    softcap: float | None
    """Soft cap on attention scores (Gemma-2)."""
    window: int | None
    """Size of the sliding window, the token itself included; None: no window."""


class AttentionPlan(Protocol):
    def attend(self, call: AttentionCall) -> Tensor:
        """Return the attention output, [N, H, D]."""
        ...


def attention_forward(
    module: nn.Module,
    query: Tensor,  # [1, H, N, D]
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    plan: AttentionPlan | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention function with the signature that transformers expects."""
    if others.get("s_aux") is not None or others.get("position_bias") is not None:
        raise RuntimeError(f"{type(module).__name__} uses attention sinks or biases, which turnwise does not support")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if plan is None:
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return attend_by_active_plan(q, k, v, scale, softcap or 0.0, sliding_window or 0)[None], None
    call = AttentionCall(
        layer=int(module.layer_idx),  # type: ignore[arg-type]
        query=query[0].transpose(0, 1),
        key=key[0].transpose(0, 1),
        value=value[0].transpose(0, 1),
        scale=scale,
        softcap=softcap,
        window=sliding_window,
    )
    return plan.attend(call)[None], None


AttentionInterface.register(ATTENTION, attention_forward)


def check_attention(model: Any) -> None:
    """Raise unless the model uses this attention function: any other would ignore the plan and mix packed rows."""
    if model.config._attn_implementation != ATTENTION:
        raise ValueError(f'load the model with attn_implementation="{ATTENTION}"')


def causal_bias(
    query_positions: Tensor, key_positions: Tensor, window: int | None, ahead: Tensor | None = None
) -> Tensor:
    """Return the additive mask for attention scores: 0 where a query sees a key, -inf elsewhere. Broadcasts.

    A query sees keys at or before its position and inside the window, and as many later ones as `ahead` says.
    """
    hidden = key_positions > (query_positions if ahead is None else query_positions + ahead)
    if window is not None:
        hidden |= key_positions <= query_positions - window
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, float("-inf"))


def masked_attention(
    call: AttentionCall,
    query: Tensor,  # [B, H, Tq, D]
    key: Tensor,  # [B, KV, Tk, D]
    value: Tensor,
    mask: Tensor,  # [B, 1, Tq, Tk], from `causal_bias`
) -> Tensor:
    """Return attention under an additive mask, with the model's soft cap if it has one. [B, H, Tq, D]"""
    mask = mask.to(query.dtype)
    if call.softcap is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=call.scale, enable_gqa=True)
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    scores = torch.tanh(query @ key.transpose(2, 3) * (call.scale / call.softcap)) * call.softcap
    return (scores + mask).softmax(dim=-1) @ value
