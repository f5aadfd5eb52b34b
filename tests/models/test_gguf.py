from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise.core.errors import UserError
from turnwise.models.loading import pretrained
from turnwise.models.loading.load import load_model
from turnwise.models.loading.save import save_model

TOKENS = [*map(chr, range(33, 127)), "Ġ", "Ċ", "ab", "<|start|>", "<|stop|>"]
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


def write_gguf(model: LlamaForCausalLM, file: Path) -> None:
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
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(STOP - 1)
    writer.add_eos_token_id(STOP)
    writer.add_chat_template(TEMPLATE)
    for name, array in tensors(model).items():
        writer.add_tensor(name, array)
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


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf(small_llama(), file)
    return file


def test_read_gguf_gives_the_same_logits_and_a_tokenizer(file: Path) -> None:
    loaded = load_model(str(file))
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.allclose(loaded.model(ids).logits, small_llama()(ids).logits, atol=1e-5)
    assert loaded.stop_ids == (STOP,)
    assert loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer.encode("abb")) == ["ab", "b"]
    assert loaded.tokenizer.chat_template == TEMPLATE


def test_model_from_gguf_can_be_trained_and_saved(file: Path, tmp_path: Path) -> None:
    loaded = load_model(str(file))
    loaded.model(torch.arange(9)[None]).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in loaded.model.parameters())
    save_model(loaded.model, loaded.tokenizer, tmp_path / "plain")
    again = load_model(str(tmp_path / "plain")).model.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in loaded.model.state_dict().items())


def test_read_gguf_prints_nothing(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(str(file))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("size", [0, 3, 40, 2000, -4000])
def test_read_gguf_reports_a_damaged_file_in_one_line(file: Path, tmp_path: Path, size: int) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(file.read_bytes()[:size])
    with pytest.raises(UserError) as caught:
        load_model(str(damaged))
    assert "damaged.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_read_gguf_names_missing_packages(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs gguf and accelerate: run `pip install 'turnwise\[gguf\]'`"):
        load_model(str(file))
