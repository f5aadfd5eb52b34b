"""Linear layers that read the same vector, run as one where nothing is learnt: decoding waits for launches, not work.

Their weights are laid behind each other in one storage, of which each parameter is a part; the whole is multiplied in
one product. Names, shapes and gradients of the parameters stay as they were.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Children of one module that are called in this order with the same input."""


def fuse_siblings(model: nn.Module) -> int:
    """Moves their weights: before anything else holds them. Returns how many products became part of another."""
    saved = 0
    for parent in model.modules():
        for names in SIBLINGS:
            linears = [getattr(parent, name, None) for name in names]
            if all(type(each) is nn.Linear and each.bias is None for each in linears):
                _fuse([each for each in linears if each is not None])
                saved += len(names) - 1
    return saved


def _fuse(linears: Sequence[nn.Linear]) -> None:
    together = torch.cat([each.weight.data for each in linears])
    for each, part in zip(linears, together.split([each.out_features for each in linears]), strict=True):
        each.weight.data = part
    leader, *others = linears
    leader.__class__ = Leader
    leader.__dict__["_led"] = others  # no submodules of it: they keep their own names
    for each in others:
        each.__class__ = Led


@torch.library.custom_op("turnwise::siblings", mutates_args=())
def siblings(input: Tensor, weights: list[Tensor]) -> Tensor:
    """All their products behind each other: one where the weights lie so, which those of a model's copy do not."""
    first = weights[0]
    if not _side_by_side(weights):
        return torch.cat([F.linear(input, each) for each in weights], dim=-1)
    rows = sum(each.shape[0] for each in weights)
    return F.linear(input, first.as_strided((rows, first.shape[1]), (first.shape[1], 1)))


@siblings.register_fake
def _(input: Tensor, weights: list[Tensor]) -> Tensor:
    return input.new_empty(*input.shape[:-1], sum(each.shape[0] for each in weights))


def _side_by_side(weights: Sequence[Tensor]) -> bool:
    storage, place = weights[0].untyped_storage().data_ptr(), weights[0].data_ptr()
    for each in weights:
        if each.untyped_storage().data_ptr() != storage or each.data_ptr() != place or not each.is_contiguous():
            return False
        place += each.numel() * each.element_size()
    return True


class Leader(nn.Linear):
    """The first of the siblings: makes all their products, and leaves the others theirs."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return F.linear(input, self.weight)
        others: list[Any] = self.__dict__["_led"]
        sizes = [self.out_features, *(each.out_features for each in others)]
        whole = siblings(input, [self.weight, *(each.weight for each in others)])
        own, *parts = whole.split(sizes, dim=-1)
        for each, part in zip(others, parts, strict=True):
            each._held = (input, part)
        return own


class Led(nn.Linear):
    """One of the others: takes what it was left, if it was made from this input."""

    _held: tuple[Tensor, Tensor] | None = None

    def forward(self, input: Tensor) -> Tensor:
        held, self._held = self._held, None
        return held[1] if held is not None and held[0] is input else F.linear(input, self.weight)
