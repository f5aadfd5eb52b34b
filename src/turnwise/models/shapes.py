"""What of a model its memory depends on; weights are not needed."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from turnwise.models.last_layer import layers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Counts are of numbers, not of bytes."""

    parameters: int
    trained: int
    """All of them, or those of an adapter."""
    matrices: int
    """Of the trained: in what Muon would train."""
    trunk: int
    """All but an output layer of its own: what a critic copies."""
    trunk_trained: int
    largest: int
    """The largest trained tensor."""
    adapter: bool
    layers: int
    hidden: int
    inner: int
    """Width of the feed-forward part; of experts, of those that a token meets."""
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    number_bytes: int
    """Of a parameter."""


def shape_of_config(config: Any, *, rank: int = 0, targets: Collection[str] = (), number_bytes: int = 2) -> ModelShape:
    """Of a model that is not there: it is built without memory. `rank`: of an adapter that it would be given."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    sizes = _adapter_sizes(model, rank, targets) if rank else None
    return _shape(model, sizes, number_bytes)


def shape_of(model: Any) -> ModelShape:
    """Of a model as it is, its adapter included."""
    return _shape(model, None, model.get_input_embeddings().weight.dtype.itemsize)


def _adapter_sizes(model: Any, rank: int, targets: Collection[str]) -> list[int]:
    """Of the two factors at each layer that gets some."""
    chosen = [
        weight.shape
        for name, module in (layers_of(model) or model).named_modules()
        if isinstance(weight := getattr(module, "weight", None), nn.Parameter) and weight.ndim == 2
        if not targets or name.rpartition(".")[2] in targets
    ]
    return [rank * side for shape in chosen for side in shape]


def _shape(model: Any, adapter: list[int] | None, number_bytes: int) -> ModelShape:
    """`adapter`: sizes of the tensors of one that is to come."""
    tables = {id(each.weight) for each in (model.get_input_embeddings(), model.get_output_embeddings())}
    every, inside = list(model.parameters()), {id(each) for each in model.base_model.parameters()}
    own = [each for each in every if each.requires_grad]
    trained = adapter if adapter is not None else [each.numel() for each in own]
    matrices = adapter or [each.numel() for each in own if each.ndim == 2 and id(each) not in tables]
    in_trunk = adapter or [each.numel() for each in own if id(each) in inside]
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    return ModelShape(
        parameters=sum(each.numel() for each in every) + sum(adapter or ()),
        trained=sum(trained),
        matrices=sum(matrices),
        trunk=sum(each.numel() for each in every if id(each) in inside) + sum(adapter or ()),
        trunk_trained=sum(in_trunk),
        largest=max(trained, default=0),
        adapter=adapter is not None or len(own) < len(every),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        inner=_inner(config),
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        number_bytes=number_bytes,
    )


def _inner(config: Any) -> int:
    """Families differ in what they call it, and some have it left out: then it is four times the hidden size."""
    if getattr(config, "moe_intermediate_size", None) and getattr(config, "num_experts_per_tok", None):
        return config.moe_intermediate_size * config.num_experts_per_tok
    found = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    return found or 4 * config.hidden_size
