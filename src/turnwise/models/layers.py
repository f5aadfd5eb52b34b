"""Compiles a model's layers on a GPU: one compilation for all of them, and for the engine and the learner each.

Layers are alike, and what attention does is no part of what is compiled. So it takes seconds, not minutes, and torch
keeps the result on disk for the next run.
"""

import copy
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from turnwise.models.head import output_head
from turnwise.models.loading.catalogue import cache_folder

CACHE_VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
MAX_COMPILATIONS = 64
"""Compilations of one function before torch gives up on it: layer kinds, number types, with and without gradients."""


def decoder_layers(model: Any) -> nn.ModuleList | None:
    return next((child for child in model.base_model.children() if isinstance(child, nn.ModuleList)), None)


def compile_layers(model: Any) -> int:
    """Changes how the layers are called, and where some weights lie: before an engine or an optimiser holds them."""
    for variable, name in CACHE_VARIABLES.items():
        os.environ.setdefault(variable, str(cache_folder() / "compiled" / name))
    torch._dynamo.config.cache_size_limit = max(torch._dynamo.config.cache_size_limit, MAX_COMPILATIONS)
    fuse_projections(model)
    output_head(model)  # looks before there is something to compile
    layers = list(decoder_layers(model) or [])
    for layer in layers:
        layer.compile(dynamic=None)
    return len(layers)


def copy_model(model: Any) -> Any:
    """The same model with weights of its own, its layers compiled where the model's are: a plain copy forgets that."""
    copied = copy.deepcopy(model)
    for own, layer in zip(decoder_layers(copied) or (), decoder_layers(model) or (), strict=True):
        if layer._compiled_call_impl is not None:
            own.compile(dynamic=None)
    return copied


PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Children of one module that are called in this order with the same input."""


def fuse_projections(model: nn.Module) -> int:
    """Moves their weights: before anything else holds them. Returns how many products became part of another."""
    saved = 0
    for parent in model.modules():
        for names in PROJECTIONS:
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
    leader.__class__ = FusedLinear
    leader.__dict__["_led"] = others  # no submodules of it: they keep their own names
    for each in others:
        each.__class__ = FusedFollower


@torch.library.custom_op("turnwise::siblings", mutates_args=())
def fused_linear(input: Tensor, weights: list[Tensor]) -> Tensor:
    """All their products behind each other: one where the weights lie so, which those of a model's copy do not."""
    first = weights[0]
    if not _are_adjacent(weights):
        return torch.cat([F.linear(input, each) for each in weights], dim=-1)
    rows = sum(each.shape[0] for each in weights)
    return F.linear(input, first.as_strided((rows, first.shape[1]), (first.shape[1], 1)))


@fused_linear.register_fake
def _(input: Tensor, weights: list[Tensor]) -> Tensor:
    return input.new_empty(*input.shape[:-1], sum(each.shape[0] for each in weights))


def _are_adjacent(weights: Sequence[Tensor]) -> bool:
    storage, place = weights[0].untyped_storage().data_ptr(), weights[0].data_ptr()
    for each in weights:
        if each.untyped_storage().data_ptr() != storage or each.data_ptr() != place or not each.is_contiguous():
            return False
        place += each.numel() * each.element_size()
    return True


class FusedLinear(nn.Linear):
    """The first of the siblings: makes all their products, and leaves the others theirs."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return F.linear(input, self.weight)
        others: list[Any] = self.__dict__["_led"]
        sizes = [self.out_features, *(each.out_features for each in others)]
        whole = fused_linear(input, [self.weight, *(each.weight for each in others)])
        own, *parts = whole.split(sizes, dim=-1)
        for each, part in zip(others, parts, strict=True):
            each._held = (input, part)
        return own


class FusedFollower(nn.Linear):
    """One of the others: takes what it was left, if it was made from this input."""

    _held: tuple[Tensor, Tensor] | None = None

    def forward(self, input: Tensor) -> Tensor:
        held, self._held = self._held, None
        return held[1] if held is not None and held[0] is input else F.linear(input, self.weight)


def recompute_layers(model: Any) -> int:
    """Changes what layers keep, and nothing about what they compute, compiled or not. How many there are.

    The backward pass runs them again, and so runs inside everything that their forward needs.
    """
    layers = list(decoder_layers(model) or [])[:-1]
    for layer in layers:
        layer.__class__ = _recomputed_class(type(layer))
    return len(layers)


class Recomputed:
    """Marks a layer of this kind."""


_recomputed_classes: dict[type[nn.Module], type[nn.Module]] = {}


def _recomputed_class(kind: type[nn.Module]) -> type[nn.Module]:
    """The same kind of layer, called through a checkpoint where gradients are asked for. One class for all such layers:
    they share their compilation.
    """
    if issubclass(kind, Recomputed):
        return kind
    if kind in _recomputed_classes:
        return _recomputed_classes[kind]

    class RecomputedLayer(kind, Recomputed):  # type: ignore[misc, valid-type]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return super().__call__(*args, **kwargs)
            # nothing is drawn at random in a layer: dropout is removed at load
            return checkpoint(super().__call__, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    RecomputedLayer.__name__ = f"Recomputed{kind.__name__}"
    _recomputed_classes[kind] = RecomputedLayer
    return RecomputedLayer
