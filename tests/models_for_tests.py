"""Random causal LMs of several families, small enough to run anywhere."""

import copy
from functools import cache
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

VOCABULARY = 97
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
WITH_HEAD = {**SHAPE, "head_dim": 16}

FAMILIES: dict[str, Any] = {
    "llama": LlamaConfig(**WITH_HEAD),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**WITH_HEAD),
    "gemma": GemmaConfig(**WITH_HEAD),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=1
    ),
    "gemma2, soft caps and a window": Gemma2Config(**WITH_HEAD, sliding_window=4, query_pre_attn_scalar=16),
    "gemma3, windows": Gemma3TextConfig(**WITH_HEAD, sliding_window=4),
    "mistral, a window": MistralConfig(**WITH_HEAD, sliding_window=5),
    "qwen3 moe, experts": Qwen3MoeConfig(
        **WITH_HEAD, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1
    ),
    "granite, scaled logits": GraniteConfig(**SHAPE, logits_scaling=3.0),
}


def random_model(
    family: str, attention: str, dtype: torch.dtype = torch.float32, layers: int = SHAPE["num_hidden_layers"]
) -> Any:
    """Return the model of a family, with the same weights for any attention function."""
    return copy.deepcopy(_prototype(family, attention, dtype, layers))


@cache
def _prototype(family: str, attention: str, dtype: torch.dtype, layers: int) -> Any:
    """Copying it takes a fraction of the time that making it takes."""
    config = copy.deepcopy(FAMILIES[family])
    if layers != config.num_hidden_layers:
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None) is not None:
            config.layer_types = config.layer_types[:layers]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    for parameter in model.parameters():  # sharper than the initial scale, so that wrong attention shows
        parameter.data.mul_(2)
    return model.to(dtype).eval()
