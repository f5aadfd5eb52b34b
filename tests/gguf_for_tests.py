"""GGUF files with a small random Llama."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = [*map(chr, range(33, 127)), "Ġ", "Ċ", "ab", "12", "<|start|>", "<|stop|>"]
STOP = TOKENS.index("<|stop|>")
TEMPLATE = "{% for message in messages %}<|start|>{{ message.content }}<|stop|>{% endfor %}"
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
    )
    return LlamaForCausalLM(config).eval()


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Interleave rotary pairs, as GGUF stores them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(model: LlamaForCausalLM, file: Path, quantization: gguf.GGMLQuantizationType | None = None) -> None:
    """Write weights in float32, or matrices in a quantized format."""
    config, writer = model.config, gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_name("small")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(TOKENS) - 2) + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(STOP - 1)
    writer.add_eos_token_id(STOP)
    writer.add_chat_template(TEMPLATE)
    for name, array in tensors(model).items():
        if quantization is None or array.ndim == 1:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(model: LlamaForCausalLM) -> dict[str, Any]:
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    found = {"token_embd.weight": state["model.embed_tokens.weight"], "output_norm.weight": state["model.norm.weight"]}
    for layer in range(model.config.num_hidden_layers):
        for ours, theirs in NAMES.items():
            array = state[f"model.layers.{layer}.{ours}.weight"]
            if theirs == "attn_q":
                array = interleaved(array, model.config.num_attention_heads)
            if theirs == "attn_k":
                array = interleaved(array, model.config.num_key_value_heads)
            found[f"blk.{layer}.{theirs}.weight"] = array
    return found
