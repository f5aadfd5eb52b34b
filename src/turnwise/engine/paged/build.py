"""A paged runner for a model: what its layers keep, and how many pages the memory takes."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from turnwise.core.errors import UserError
from turnwise.engine.paged.device import Device
from turnwise.engine.paged.plan import CacheShape, page_bytes
from turnwise.engine.paged.runner import PagedRunner
from turnwise.engine.paged.sessions import PAGE
from turnwise.models.attention import check_attention
from turnwise.models.attention_op import attending
from turnwise.models.head import head_of
from turnwise.models.varlen import VarlenPlan

PREFILL_TOKENS = 16384
"""New tokens of one forward, at most."""


class _Look(VarlenPlan):
    """Attends, and notes what it was given."""

    def __init__(self, length: int, device: torch.device) -> None:
        super().__init__([length], [-1], device)
        self.shapes: list[tuple[int, int]] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float, window: int) -> Tensor:
        self.shapes.append((key.shape[1], key.shape[2]))
        return super().attend(query, key, value, scale, softcap, window)


@torch.no_grad()
def cache_shape(model: Any) -> CacheShape:
    """Asked of the model itself, by one short forward."""
    device = model.get_input_embeddings().weight.device
    look, ids = _Look(8, device), torch.arange(8, device=device)[None]
    with attending(look):
        model.base_model(input_ids=ids, position_ids=ids, use_cache=False)
    return look.shapes


def most_pages(slots: int, longest: int) -> int:
    """As many as could ever be used, and one that is nobody's."""
    return slots * -(-longest // PAGE) + 1


def pages_for(bytes_each: int, wanted: int, device: torch.device, share: float) -> int:
    """As many as are wanted, or as fit into this share of the memory that is free."""
    if device.type != "cuda":
        return wanted
    free, _ = torch.cuda.mem_get_info(device)
    return max(2, min(wanted, int(free * share) // bytes_each))


def build_paged_runner(
    model: Any,
    *,
    slots: int,
    longest: int,
    stop_ids: Iterable[int],
    decode: Callable[[list[int]], str],
    steps: int = 4,
    share: float = 0.4,
    pages: int | None = None,
    prefill_tokens: int = PREFILL_TOKENS,
) -> PagedRunner:
    """`longest`: tokens of a context, at most. `share`: of the free memory, at most, for keys and values."""
    check_attention(model)
    head = head_of(model)
    if head is None:
        raise UserError(
            f"{type(model).__name__} makes its logits in a way that the engine on a GPU does not know: "
            "give --model.device cpu, or another model"
        )
    shape = cache_shape(model)
    if pages is None:
        each = page_bytes(shape, head.weight.dtype)
        pages = pages_for(each, most_pages(slots, longest), head.weight.device, share)
    stops = tuple(stop_ids)
    device = Device(
        model,
        head,
        shape,
        slots=slots,
        width=-(-longest // PAGE),
        pages=pages,
        stop_ids=stops,
        prefill_tokens=prefill_tokens,
    )
    return PagedRunner(device, pages=pages, stop_ids=stops, decode=decode, steps=steps)
