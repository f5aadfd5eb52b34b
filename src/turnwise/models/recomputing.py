"""Activations made again in the backward pass in place of being kept: memory of one layer in place of all, for a third
more work.

Of each layer only its input is kept. The last layer is left as it is: the backward pass begins with it.
"""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from turnwise.models.last_layer import layers_of


def recompute_layers(model: Any) -> int:
    """Changes what layers keep, and nothing about what they compute, compiled or not. How many there are.

    The backward pass runs them again, and so runs inside everything that their forward needs.
    """
    layers = list(layers_of(model) or [])[:-1]
    for layer in layers:
        layer.__class__ = _recomputed(type(layer))
    return len(layers)


class Recomputed:
    """Marks a layer of this kind."""


_kinds: dict[type[nn.Module], type[nn.Module]] = {}


def _recomputed(kind: type[nn.Module]) -> type[nn.Module]:
    """The same kind of layer, called through a checkpoint where gradients are asked for. One class for all such layers:
    they share their compilation.
    """
    if issubclass(kind, Recomputed):
        return kind
    if kind in _kinds:
        return _kinds[kind]

    class RecomputedLayer(kind, Recomputed):  # type: ignore[misc, valid-type]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return super().__call__(*args, **kwargs)
            # nothing is drawn at random in a layer: dropout is removed at load
            return checkpoint(super().__call__, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    RecomputedLayer.__name__ = f"Recomputed{kind.__name__}"
    _kinds[kind] = RecomputedLayer
    return RecomputedLayer
