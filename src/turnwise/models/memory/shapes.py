"""Dimensions of a model that its memory depends on, from a name, a configuration or a loaded model."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from turnwise.core.errors import UserError
from turnwise.models.layers import decoder_layers
from turnwise.models.loading.catalogue import SMOLLM2, SMOLLM2_VISION, TINY, TINY_VLM
from turnwise.models.loading.hub import is_hub_available, is_hub_name
from turnwise.models.loading.lora import base_model_of
from turnwise.models.loading.model_files import is_adapter
from turnwise.models.loading.pretrained import quiet_transformers, reads_images
from turnwise.models.loading.smollm2_vision import vision_config
from turnwise.models.loading.tiny import tiny_config, tiny_vlm_config
from turnwise.text.suggestions import suggest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Counts are of numbers, not bytes."""

    parameters: int
    trained: int
    """All parameters, or those of the adapter."""
    matrices: int
    """Trained parameters in the matrices that Muon would update."""
    trunk: int
    """Parameters without an untied output layer: what a critic copies."""
    trunk_trained: int
    largest_tensor: int
    """Size of the largest trained tensor."""
    adapter: bool
    layers: int
    hidden: int
    intermediate: int
    """Width of the feed-forward part; for a mixture of experts, of the experts active per token."""
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    parameter_bytes: int


def config_shape(config: Any, *, rank: int = 0, targets: Collection[str] = (), parameter_bytes: int = 2) -> ModelShape:
    """Return the shape of a model that is not loaded. `rank`: of the adapter that it would get; 0: none."""
    loader = AutoModelForImageTextToText if reads_images(config) else AutoModelForCausalLM
    with torch.device("meta"):
        model = loader.from_config(config)
    sizes = _adapter_sizes(model, rank, targets) if rank else None
    return _shape(model, sizes, parameter_bytes)


def model_shape(model: Any) -> ModelShape:
    """Return the shape of a loaded model, its adapter included."""
    return _shape(model, None, model.get_input_embeddings().weight.dtype.itemsize)


def _adapter_sizes(model: Any, rank: int, targets: Collection[str]) -> list[int]:
    """Return the sizes of the two LoRA factors of each target layer."""
    chosen = [
        weight.shape
        for name, module in (decoder_layers(model) or model).named_modules()
        if isinstance(weight := getattr(module, "weight", None), nn.Parameter) and weight.ndim == 2
        if not targets or name.rpartition(".")[2] in targets
    ]
    return [rank * side for shape in chosen for side in shape]


def _shape(model: Any, adapter: list[int] | None, parameter_bytes: int) -> ModelShape:
    """`adapter`: tensor sizes of an adapter that the model does not have yet."""
    embeddings = {id(embedding.weight) for embedding in (model.get_input_embeddings(), model.get_output_embeddings())}
    every, trunk = list(model.parameters()), {id(parameter) for parameter in model.base_model.parameters()}
    trainable = [parameter for parameter in every if parameter.requires_grad]
    trained = adapter if adapter is not None else [parameter.numel() for parameter in trainable]
    matrices = adapter or [
        parameter.numel() for parameter in trainable if parameter.ndim == 2 and id(parameter) not in embeddings
    ]
    in_trunk = adapter or [parameter.numel() for parameter in trainable if id(parameter) in trunk]
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    return ModelShape(
        parameters=sum(parameter.numel() for parameter in every) + sum(adapter or ()),
        trained=sum(trained),
        matrices=sum(matrices),
        trunk=sum(parameter.numel() for parameter in every if id(parameter) in trunk) + sum(adapter or ()),
        trunk_trained=sum(in_trunk),
        largest_tensor=max(trained, default=0),
        adapter=adapter is not None or len(trainable) < len(every),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=_intermediate_size(config),
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        parameter_bytes=parameter_bytes,
    )


def _intermediate_size(config: Any) -> int:
    """Model families name it differently; some remove it, which means four times the hidden size."""
    if getattr(config, "moe_intermediate_size", None) and getattr(config, "num_experts_per_tok", None):
        return config.moe_intermediate_size * config.num_experts_per_tok
    size = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    return size or 4 * config.hidden_size


MODEL_FIELDS = (
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
"""Name -> (transformers' model type, values of MODEL_FIELDS). Known without a download, because papers train them."""


def load_config(name: str) -> Any:
    """Return the configuration of a built-in model, one in KNOWN_MODELS, a model or adapter folder, or a hub name."""
    if name == TINY:
        return tiny_config()
    if name == TINY_VLM:
        return tiny_vlm_config()
    if name == SMOLLM2_VISION:
        return vision_config(known_config(SMOLLM2))
    path = Path(name).expanduser()
    if name and is_adapter(path):
        return load_config(base_model_of(path))
    if (path / "config.json").is_file():
        return _read(str(path), local=True)
    if short_name(name) in KNOWN_MODELS or not is_hub_name(name):
        return known_config(name)
    return _read(name, local=not is_hub_available(name))


def known_config(name: str) -> Any:
    """Return the configuration of a model in KNOWN_MODELS, by its short name or its hub name."""
    short = short_name(name)
    if short not in KNOWN_MODELS:
        raise UserError(f'Unknown model "{name}":{suggest(short, KNOWN_MODELS)} (or use a folder or owner/name).')
    model_type, values = KNOWN_MODELS[short]
    return AutoConfig.for_model(model_type, **dict(zip(MODEL_FIELDS, values, strict=True)))


def short_name(name: str) -> str:
    """Qwen/Qwen2.5-7B-Instruct -> qwen2.5-7b"""
    return name.lower().rpartition("/")[2].removesuffix("-instruct")


def _read(source: str, *, local: bool) -> Any:
    """Raise a UserError for any exception: a damaged file can fail anywhere in the readers, in any way."""
    try:
        with quiet_transformers():
            return AutoConfig.from_pretrained(source, local_files_only=local, trust_remote_code=False)
    except Exception as error:
        raise UserError(
            f'Cannot read the configuration of model "{source}" ({type(error).__name__}): use another model.'
        ) from error
