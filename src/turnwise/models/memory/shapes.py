"""What of a model its memory depends on; weights are not needed."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from turnwise.core.errors import UserError
from turnwise.core.suggestions import nearest
from turnwise.models.layers import decoder_layers
from turnwise.models.loading.catalogue import TINY
from turnwise.models.loading.hub import is_hub_available, is_hub_name
from turnwise.models.loading.lora import base_model_of, is_adapter
from turnwise.models.loading.pretrained import quiet_transformers
from turnwise.models.loading.tiny import tiny_config


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


def config_shape(config: Any, *, rank: int = 0, targets: Collection[str] = (), number_bytes: int = 2) -> ModelShape:
    """Of a model that is not there: it is built without memory. `rank`: of an adapter that it would be given."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    sizes = _adapter_sizes(model, rank, targets) if rank else None
    return _shape(model, sizes, number_bytes)


def model_shape(model: Any) -> ModelShape:
    """Of a model as it is, its adapter included."""
    return _shape(model, None, model.get_input_embeddings().weight.dtype.itemsize)


def _adapter_sizes(model: Any, rank: int, targets: Collection[str]) -> list[int]:
    """Of the two factors at each layer that gets some."""
    chosen = [
        weight.shape
        for name, module in (decoder_layers(model) or model).named_modules()
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
        inner=_intermediate_size(config),
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        number_bytes=number_bytes,
    )


def _intermediate_size(config: Any) -> int:
    """Families differ in what they call it, and some have it left out: then it is four times the hidden size."""
    if getattr(config, "moe_intermediate_size", None) and getattr(config, "num_experts_per_tok", None):
        return config.moe_intermediate_size * config.num_experts_per_tok
    found = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    return found or 4 * config.hidden_size


COLUMNS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)
KNOWN_MODELS: dict[str, tuple[str, tuple[int, ...]]] = {
    "smollm2-135m": ("llama", (576, 1536, 30, 9, 3, 49152, True)),
    "smollm2-360m": ("llama", (960, 2560, 32, 15, 5, 49152, True)),
    "smollm2-1.7b": ("llama", (2048, 8192, 24, 32, 32, 49152, True)),
    "qwen2.5-0.5b": ("qwen2", (896, 4864, 24, 14, 2, 151936, True)),
    "qwen2.5-1.5b": ("qwen2", (1536, 8960, 28, 12, 2, 151936, True)),
    "qwen2.5-3b": ("qwen2", (2048, 11008, 36, 16, 2, 151936, True)),
    "qwen2.5-7b": ("qwen2", (3584, 18944, 28, 28, 4, 152064, False)),
    "llama-3.2-1b": ("llama", (2048, 8192, 16, 32, 8, 128256, True)),
    "llama-3.2-3b": ("llama", (3072, 8192, 28, 24, 8, 128256, True)),
}
"""Name -> (transformers' kind of model, its numbers by COLUMNS)."""


def load_config(name: str) -> Any:
    """Of tiny, of a model in KNOWN, of a folder, or of a name on the hub."""
    if name == TINY:
        return tiny_config()
    path = Path(name).expanduser()
    if name and is_adapter(path):
        return load_config(base_model_of(path))
    if (path / "config.json").is_file():
        return _read(str(path), local=True)
    if short_name(name) in KNOWN_MODELS or not is_hub_name(name):
        return known_config(name)
    return _read(name, local=not is_hub_available(name))


def known_config(name: str) -> Any:
    """Of a model in KNOWN, by its short name or its name on the hub; an unknown one is an error with the nearest."""
    short = short_name(name)
    if short not in KNOWN_MODELS:
        raise UserError(
            f'the shape of "{name}" is not known:{nearest(short, KNOWN_MODELS)} (or give a folder, or owner/name)'
        )
    kind, numbers = KNOWN_MODELS[short]
    return AutoConfig.for_model(kind, **dict(zip(COLUMNS, numbers, strict=True)))


def short_name(name: str) -> str:
    """Qwen/Qwen2.5-7B-Instruct -> qwen2.5-7b"""
    return name.lower().rpartition("/")[2].removesuffix("-instruct")


def _read(where: str, *, local: bool) -> Any:
    """The boundary to other people's files: a damaged one can fail anywhere in the readers, with any exception."""
    try:
        with quiet_transformers():
            return AutoConfig.from_pretrained(where, local_files_only=local, trust_remote_code=False)
    except Exception as error:
        raise UserError(
            f'the configuration of model "{where}" cannot be read ({type(error).__name__}): give another'
        ) from error
