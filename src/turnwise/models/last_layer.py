"""The last layer's feed-forward part, run only for the tokens whose output is read.

A token's logits need the last layer's keys and values of all tokens before it, but its feed-forward part of that token
alone. Of a trajectory most tokens are observations, which nobody samples: in a model of two layers this is a third of
all work, in one of thirty nearly nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def last_layer_only_at(model: Any, keep: Tensor) -> Iterator[None]:
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


def last_layer(model: Any) -> int | None:
    """The number of the last layer where its feed-forward part is run only for some tokens; else None."""
    layers = layers_of(model)
    return None if layers is None or _last_feed_forward(model) is None else len(layers) - 1


def layers_of(model: Any) -> nn.ModuleList | None:
    return next((child for child in model.base_model.children() if isinstance(child, nn.ModuleList)), None)


def _last_feed_forward(model: Any) -> nn.Module | None:
    """None where it is not a plain function of one token's vector, as far as can be told: a mixture of experts."""
    layers = layers_of(model)
    part = getattr(layers[-1], "mlp", None) if layers is not None else None
    if part is None:
        return None
    plain = all(parameter.ndim <= 2 for parameter in part.parameters())
    return part if plain and not any(isinstance(each, nn.ModuleList) for each in part.modules()) else None
