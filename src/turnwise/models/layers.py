"""Rewrites of a model's decoder layers: compilation, fused projections, activation recomputation; and copies.

Compilation on a GPU: all layers share one compilation, and attention is not part of it. So it takes seconds instead of
minutes, and torch keeps the result on disk for the next run.

Fused projections: linear layers that read the same input run as one product when no gradient is needed, because
decoding is bound by kernel launches. Their weights share one storage, of which each parameter is a view; names, shapes
and gradients of the parameters do not change.

Recomputation (activation checkpointing): a layer keeps only its input for the backward pass and runs again there.
Memory for one layer instead of all, for about a third more work.
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
"""Compilations of one function before torch falls back to eager: layer types, dtypes, with and without gradients."""
PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Children of one module that are called in this order with the same input."""


def decoder_layers(model: Any) -> nn.ModuleList | None:
    """Return the layers of the language model, or None if it has no list of them."""
    return next(
        (child for child in model.base_model.get_decoder().children() if isinstance(child, nn.ModuleList)), None
    )


def compile_layers(model: Any) -> int:
    """Compile the decoder layers and fuse their projections; return the number of layers.

    Moves weights: call it before an engine or an optimizer holds references to them.
    """
    fuse_projections(model)
    output_head(model)  # verified now, so that its test forward does not trigger a compilation
    return compile_unfused_layers(model)


def compile_unfused_layers(model: Any) -> int:
    """Compile the decoder layers of any model, such as a sharded one, whose weights cannot share a storage."""
    for variable, name in CACHE_VARIABLES.items():
        os.environ.setdefault(variable, str(cache_folder() / "compiled" / name))
    torch._dynamo.config.cache_size_limit = max(torch._dynamo.config.cache_size_limit, MAX_COMPILATIONS)
    layers = list(decoder_layers(model) or [])
    for layer in layers:
        layer.compile(dynamic=None)
    return len(layers)


def copy_model(model: Any) -> Any:
    """Return a deep copy whose layers are compiled if the model's are, which `deepcopy` alone does not keep."""
    copied = copy.deepcopy(model)
    for target, layer in zip(decoder_layers(copied) or (), decoder_layers(model) or (), strict=True):
        if layer._compiled_call_impl is not None:
            target.compile(dynamic=None)
    return copied


def fuse_projections(model: nn.Module) -> int:
    """Fuse sibling projections without bias; return the number of matrix products saved per forward.

    Moves weights: call it before anything else holds references to them.
    """
    saved = 0
    for parent in model.modules():
        for names in PROJECTIONS:
            linears = [getattr(parent, name, None) for name in names]
            if all(type(linear) is nn.Linear and linear.bias is None for linear in linears):
                _fuse([linear for linear in linears if linear is not None])
                saved += len(names) - 1
    return saved


def _fuse(linears: Sequence[nn.Linear]) -> None:
    joined = torch.cat([linear.weight.data for linear in linears])
    for linear, part in zip(linears, joined.split([linear.out_features for linear in linears]), strict=True):
        linear.weight.data = part
    first, *followers = linears
    first.__class__ = FusedLinear
    first.__dict__["_followers"] = followers  # not as submodules: their parameters keep their names
    for follower in followers:
        follower.__class__ = FusedFollower


@torch.library.custom_op("turnwise::fused_linear", mutates_args=())
def fused_linear(input: Tensor, weights: list[Tensor]) -> Tensor:
    """Return all products, concatenated: one product if the weights are adjacent, which those of a copy are not."""
    first = weights[0]
    if not _are_adjacent(weights):
        return torch.cat([F.linear(input, weight) for weight in weights], dim=-1)
    rows = sum(weight.shape[0] for weight in weights)
    return F.linear(input, first.as_strided((rows, first.shape[1]), (first.shape[1], 1)))


@fused_linear.register_fake
def _(input: Tensor, weights: list[Tensor]) -> Tensor:
    return input.new_empty(*input.shape[:-1], sum(weight.shape[0] for weight in weights))


def _are_adjacent(weights: Sequence[Tensor]) -> bool:
    storage, pointer = weights[0].untyped_storage().data_ptr(), weights[0].data_ptr()
    for weight in weights:
        if weight.untyped_storage().data_ptr() != storage or weight.data_ptr() != pointer or not weight.is_contiguous():
            return False
        pointer += weight.numel() * weight.element_size()
    return True


class FusedLinear(nn.Linear):
    """First of the fused layers: computes all products and hands the followers theirs."""

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return F.linear(input, self.weight)
        followers: list[Any] = self.__dict__["_followers"]
        sizes = [self.out_features, *(follower.out_features for follower in followers)]
        joined = fused_linear(input, [self.weight, *(follower.weight for follower in followers)])
        output, *parts = joined.split(sizes, dim=-1)
        for follower, part in zip(followers, parts, strict=True):
            follower._precomputed = (input, part)
        return output


class FusedFollower(nn.Linear):
    """Returns the output that `FusedLinear` computed, if it was for the same input."""

    _precomputed: tuple[Tensor, Tensor] | None = None

    def forward(self, input: Tensor) -> Tensor:
        precomputed, self._precomputed = self._precomputed, None
        if precomputed is not None and precomputed[0] is input:
            return precomputed[1]
        return F.linear(input, self.weight)


def recompute_layers(model: Any) -> int:
    """Recompute activations of all layers but the last, where the backward pass begins; return their number.

    Outputs do not change, compiled or not. The backward pass runs the layers again, so it must run inside every context
    that their forward needs.
    """
    layers = list(decoder_layers(model) or [])[:-1]
    for layer in layers:
        layer.__class__ = _recomputed_class(type(layer))
    return len(layers)


class Recomputed:
    """Base of layer classes that recompute their activations."""


_recomputed_classes: dict[type[nn.Module], type[nn.Module]] = {}


def _recomputed_class(layer_class: type[nn.Module]) -> type[nn.Module]:
    """Return the subclass that runs through a checkpoint when gradients are needed.

    One class for all layers of a type: they share their compilation.
    """
    if issubclass(layer_class, Recomputed):
        return layer_class
    if layer_class in _recomputed_classes:
        return _recomputed_classes[layer_class]

    class RecomputedLayer(layer_class, Recomputed):  # type: ignore[misc, valid-type]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return super().__call__(*args, **kwargs)
            # No random state to preserve: dropout is removed at load.
            return checkpoint(super().__call__, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    RecomputedLayer.__name__ = f"Recomputed{layer_class.__name__}"
    _recomputed_classes[layer_class] = RecomputedLayer
    return RecomputedLayer
