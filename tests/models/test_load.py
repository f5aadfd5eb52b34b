import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    LlamaModel,
    T5Config,
    T5ForConditionalGeneration,
)

from turnwise.core.errors import UserError
from turnwise.models.loading.load import load_model, resolve_device
from turnwise.models.loading.save import save_model
from turnwise.models.loading.tiny import tiny_config, tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny as a Hugging Face folder; tests that modify it use `copied`."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_model(tiny_model(5), tiny_tokenizer(), folder)
    return folder


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def error_of(name: str | Path, **options: Any) -> str:
    """Return the one-line error of loading the model."""
    with pytest.raises(UserError) as caught:
        load_model(str(name), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_tiny_weights_follow_the_seed() -> None:
    loaded, other = load_model("tiny", seed=5), load_model("tiny", seed=6)
    expected = tiny_model(5).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.model.state_dict().items())
    assert not torch.equal(loaded.model.lm_head.weight, other.model.lm_head.weight)
    assert loaded.name == "tiny"
    assert loaded.stop_ids == (loaded.tokenizer.eos_token_id,)


def test_loaded_model_is_in_eval_mode_and_trainable(saved: Path) -> None:
    for name in ("tiny", str(saved)):
        model = load_model(name).model
        assert not model.training
        assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(("dtype", "expected"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_load_model_sets_dtype_and_attention(saved: Path, dtype: str, expected: torch.dtype) -> None:
    for name in ("tiny", str(saved)):
        model = load_model(name, dtype=dtype, attn_implementation="eager").model
        assert {parameter.dtype for parameter in model.parameters()} == {expected}
        assert model.config._attn_implementation == "eager"


def test_saved_model_loads_bit_for_bit(saved: Path) -> None:
    loaded = load_model(str(saved))
    expected = tiny_model(5).state_dict()
    assert set(loaded.model.state_dict()) == set(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.model.state_dict().items())
    assert loaded.model.get_input_embeddings().weight is loaded.model.get_output_embeddings().weight
    assert loaded.stop_ids == load_model("tiny").stop_ids


def test_saved_tokenizer_loads_unchanged(saved: Path) -> None:
    before, after = tiny_tokenizer(), load_model(str(saved)).tokenizer
    text = "  <think>Up || √</think><|end|><0x41>\r\n日本 "
    for plain in (True, False):
        options = {"add_special_tokens": False, "split_special_tokens": plain}
        assert after.encode(text, **options) == before.encode(text, **options)
    assert after.decode(after.encode(text)) == text
    assert after.chat_template == before.chat_template
    assert after.get_vocab() == before.get_vocab()


def test_load_model_prints_nothing(copied: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(str(copied))
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"num_hidden_layers": config["num_hidden_layers"] + 1}))
    error_of(copied)
    assert capfd.readouterr() == ("", "")


def test_load_model_removes_dropout(tmp_path: Path) -> None:
    config = GPT2Config(
        vocab_size=len(tiny_tokenizer()), n_embd=16, n_layer=2, n_head=2, n_positions=32, eos_token_id=1, bos_token_id=1
    )
    assert config.resid_pdrop > 0
    save_model(GPT2LMHeadModel(config), tiny_tokenizer(), tmp_path / "gpt2")
    model = load_model(str(tmp_path / "gpt2")).model
    rates = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    assert rates and set(rates) == {0.0}
    assert (model.config.resid_pdrop, model.config.attn_pdrop, model.config.embd_pdrop) == (0.0, 0.0, 0.0)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(model.train()(ids).logits, model.eval()(ids).logits)


def test_load_model_removes_attention_dropout_attributes(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.3}))
    model = load_model(str(copied)).model
    assert model.config.attention_dropout == 0.0
    assert {layer.self_attn.attention_dropout for layer in model.model.layers} == {0.0}


def test_stop_ids_come_from_generation_config_and_tokenizer(copied: Path) -> None:
    generation = json.loads((copied / "generation_config.json").read_text())
    (copied / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": [300, 7]}))
    assert load_model(str(copied)).stop_ids == (7, 300, tiny_tokenizer().eos_token_id)


def test_chat_template_file_replaces_the_tokenizers(saved: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% for message in messages %}[{{ message.content }}]{% endfor %}")
    tokenizer = load_model(str(saved), chat_template=str(file)).tokenizer
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "[hi]"


def test_tokenizer_without_chat_template_needs_a_file(copied: Path, tmp_path: Path) -> None:
    (copied / "chat_template.jinja").unlink()
    assert "has no chat template: set model.chat_template to" in error_of(copied)
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages }}")
    assert load_model(str(copied), chat_template=str(file)).tokenizer.chat_template == "{{ messages }}"


def test_missing_or_broken_chat_template_is_an_error(tmp_path: Path) -> None:
    assert "pass a Jinja file" in error_of("tiny", chat_template=str(tmp_path / "none.jinja"))
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for %}")
    assert "is not valid Jinja" in error_of("tiny", chat_template=str(broken))


def test_unknown_name_suggests_the_nearest() -> None:
    assert error_of("tinny").startswith('Unknown model "tinny": did you mean "tiny"?')
    assert 'did you mean "smollm2-135m"?' in error_of("smollm2")
    assert "there are Qwen/" in error_of("xyzzy!")
    assert error_of("").startswith('Unknown model ""')


def test_unreachable_hub_model_is_an_error() -> None:
    assert "is not in the local cache and the Hugging Face hub cannot be reached" in error_of("nobody/nothing")


def test_missing_folder_or_non_model_folder_is_an_error(tmp_path: Path) -> None:
    assert error_of(tmp_path / "none").startswith("No model folder")
    assert "it has no config.json" in error_of(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    assert "turnwise export" in error_of(tmp_path)


def test_truncated_weights_are_an_error(copied: Path) -> None:
    weights = (copied / "model.safetensors").read_bytes()
    for size in (0, 5, 100, len(weights) // 2, len(weights) - 1):
        (copied / "model.safetensors").write_bytes(weights[:size])
        assert "damaged or incomplete" in error_of(copied), size


def test_missing_weight_file_is_an_error(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    assert "weights" in error_of(copied)


def test_missing_tensor_is_an_error_and_not_initialized(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"num_hidden_layers": config["num_hidden_layers"] + 1}))
    assert "are missing (model.layers.2.input_layernorm.weight and 8 others)" in error_of(copied)


def test_mismatched_weight_shape_is_an_error(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"intermediate_size": 400}))
    assert "do not have the shape in its configuration (model.layers.0.mlp.down_proj.weight" in error_of(copied)


def test_weights_that_are_not_finite_are_an_error(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    weights["model.norm.weight"][3] = math.nan
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    assert "are not finite (model.norm.weight): use an earlier checkpoint" in error_of(copied)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model_type": "no_such_model"}'])
def test_broken_config_is_an_error(copied: Path, text: str) -> None:
    (copied / "config.json").write_text(text)
    assert "config" in error_of(copied)


def test_broken_or_missing_tokenizer_is_an_error(copied: Path) -> None:
    (copied / "tokenizer.json").write_text("{")
    assert "tokenizer" in error_of(copied)
    (copied / "tokenizer.json").unlink()
    assert "tokenizer" in error_of(copied)


def test_non_causal_model_is_an_error(tmp_path: Path) -> None:
    sizes = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    models = {
        "bert": BertForMaskedLM(BertConfig(**sizes, intermediate_size=8)),
        "t5": T5ForConditionalGeneration(T5Config(vocab_size=50, d_model=8, d_ff=8, num_layers=1, num_heads=1, d_kv=8)),
        "trunk": LlamaModel(tiny_config()),
    }
    for name, model in models.items():
        save_model(model, tiny_tokenizer(), tmp_path / name)
        assert "not a causal language model" in error_of(tmp_path / name), name


def test_remote_code_of_a_model_never_runs(copied: Path, tmp_path: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (copied / "config.json").write_text(json.dumps(config | own))
    (copied / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "custom code" in error_of(copied)
    assert not (tmp_path / "ran").exists()


def test_quantized_model_is_an_error(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    quantized = {"quant_method": "gptq", "bits": 4}
    (copied / "config.json").write_text(json.dumps(config | {"quantization_config": quantized}))
    assert "is quantized" in error_of(copied)


def test_unknown_device_or_dtype_is_an_error() -> None:
    assert "Unknown device" in error_of("tiny", device="gpu")
    assert 'Unknown dtype "float23": did you mean "float32"?' in error_of("tiny", dtype="float23")
    assert resolve_device("auto").type in ("cpu", "cuda")
    if not torch.cuda.is_available():
        assert resolve_device("auto").type == "cpu"
        assert "No CUDA device" in error_of("tiny", device="cuda")


def test_saved_folder_loads_with_plain_transformers(saved: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(saved)
    ids = torch.tensor([[300, 400, 500]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, tiny_model(5)(ids).logits)
