"""Compiles a model's layers on a GPU: one compilation for all of them, and for the engine and the learner each.

Layers are alike, and what attention does is no part of what is compiled. So it takes seconds, not minutes, and torch
keeps the result on disk for the next run.
"""

import copy
import os
from typing import Any

import torch

from turnwise.models.cache import cache_folder
from turnwise.models.fusing import fuse_siblings
from turnwise.models.head import head_of
from turnwise.models.last_layer import layers_of

CACHE_VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
VARIANTS = 64
"""Compilations of one function before torch gives up on it: layer kinds, number types, with and without gradients."""


def compile_layers(model: Any) -> int:
    """Changes how the layers are called, and where some weights lie: before an engine or an optimiser holds them."""
    for variable, name in CACHE_VARIABLES.items():
        os.environ.setdefault(variable, str(cache_folder() / "compiled" / name))
    torch._dynamo.config.cache_size_limit = max(torch._dynamo.config.cache_size_limit, VARIANTS)
    fuse_siblings(model)
    head_of(model)  # looks before there is something to compile
    layers = list(layers_of(model) or [])
    for layer in layers:
        layer.compile(dynamic=None)
    return len(layers)


def copy_of(model: Any) -> Any:
    """The same model with weights of its own, its layers compiled where the model's are: a plain copy forgets that."""
    copied = copy.deepcopy(model)
    for own, layer in zip(layers_of(copied) or (), layers_of(model) or (), strict=True):
        if layer._compiled_call_impl is not None:
            own.compile(dynamic=None)
    return copied
