import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from models_for_tests import random_model
from turnwise.core.errors import UserError
from turnwise.models.loading import lora
from turnwise.models.loading.load import load_model
from turnwise.models.loading.lora import LoraSettings, add_lora, copy_adapter, has_adapter, merge_adapter, swap_adapter
from turnwise.models.loading.save import save_model

IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])


def settings(**changes: object) -> LoraSettings:
    return LoraSettings(**{"rank": 4, "alpha": 8.0, "targets": (), "seed": 0, **changes})  # type: ignore[arg-type]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    loaded = load_model("tiny")
    save_model(loaded.model, loaded.tokenizer, tmp_path / "base")
    return tmp_path / "base"


def adapted(base: Path) -> torch.nn.Module:
    """Model with an adapter that changes the output."""
    model = load_model(str(base)).model
    add_lora(model, str(base), settings())
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    return model


def test_new_adapter_is_neutral_and_the_only_trained_part(base: Path) -> None:
    plain, model = load_model(str(base)).model, load_model(str(base)).model
    add_lora(model, str(base), settings())
    assert model(IDS).logits.equal(plain(IDS).logits)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    assert not any("lm_head" in name or "embed" in name for name in trained)


@pytest.mark.parametrize(("part", "names"), [("language", {"q_proj", "k_proj"}), ("vision", {"0", "2"})])
def test_adapter_targets_one_part_of_a_vision_model(part: str, names: set[str]) -> None:
    model = load_model("tiny_vlm").model
    add_lora(model, "tiny_vlm", settings(part=part))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained and all((".visual." in name) == (part == "vision") for name in trained)
    assert names <= {name.split(".lora_")[0].rpartition(".")[2] for name in trained}


def test_adapter_targets_both_parts_of_a_vision_model() -> None:
    model = load_model("tiny_vlm").model
    add_lora(model, "tiny_vlm", settings(part="both"))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert {".visual." in name for name in trained} == {True, False}
    assert not any("lm_head" in name for name in trained)


def test_adapter_part_without_matching_layers_is_refused(base: Path) -> None:
    with pytest.raises(UserError, match=r"No layers named q_proj in the vision part: set model\.train_vision true"):
        add_lora(load_model("tiny_vlm").model, "tiny_vlm", settings(part="vision", targets=("q_proj",)))
    with pytest.raises(UserError, match=r"model\.train_vision only needs a model that reads images"):
        add_lora(load_model(str(base)).model, str(base), settings(part="vision"))


def test_adapter_follows_its_seed_and_keeps_global_random_state(base: Path) -> None:
    def first_weights(seed: int) -> torch.Tensor:
        model = load_model(str(base)).model
        torch.manual_seed(seed + 100)
        before = torch.get_rng_state()
        add_lora(model, str(base), settings(seed=seed))
        assert torch.get_rng_state().equal(before)
        return next(parameter for name, parameter in model.named_parameters() if "lora_A" in name).detach()

    assert first_weights(0).equal(first_weights(0)) and not first_weights(0).equal(first_weights(1))


def test_swap_adapter_is_in_place_and_undone(base: Path) -> None:
    model = adapted(base)
    first, logits = copy_adapter(model), model(IDS).logits
    storage = [parameter.data_ptr() for parameter in model.parameters()]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter += 0.1
    moved = model(IDS).logits
    assert not moved.equal(logits)
    with pytest.raises(ZeroDivisionError), swap_adapter(model, first):
        assert model(IDS).logits.equal(logits)
        raise ZeroDivisionError
    assert model(IDS).logits.equal(moved) and storage == [parameter.data_ptr() for parameter in model.parameters()]
    assert first.keys() == {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_saved_adapter_loads_with_plain_peft(base: Path, tmp_path: Path) -> None:
    model = adapted(base)
    save_model(model, load_model(str(base)).tokenizer, tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    assert all("lora_" in name for name in load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter")
    torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits)


@pytest.mark.filterwarnings("error")
def test_merge_adapter_gives_an_equal_plain_model(base: Path, tmp_path: Path) -> None:
    model = adapted(base)
    save_model(model, load_model(str(base)).tokenizer, tmp_path / "adapter")
    fresh = load_model(str(base))
    save_model(merge_adapter(fresh.model, tmp_path / "adapter"), fresh.tokenizer, tmp_path / "merged")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(plain(IDS).logits, model(IDS).logits, atol=1e-4, rtol=1e-4)
    assert not any("lora" in name for name, _ in plain.named_parameters())


def test_saved_adapter_loads_with_its_base_and_is_trainable(base: Path, tmp_path: Path) -> None:
    model = adapted(base)
    save_model(model, load_model(str(base)).tokenizer, tmp_path / "adapter")
    again = load_model(str(tmp_path / "adapter")).model
    assert again(IDS).logits.equal(model(IDS).logits)
    mine = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name for name, parameter in again.named_parameters() if parameter.requires_grad} == mine


def test_add_lora_selects_targets_by_name(base: Path) -> None:
    model = load_model(str(base)).model
    add_lora(model, str(base), settings(targets=("q_proj", "v_proj")))
    named = {name.split(".")[-4] for name, each in model.named_parameters() if each.requires_grad}
    assert named == {"q_proj", "v_proj"}


@pytest.mark.parametrize("targets", [("nowhere",), ("q_proj", "nowhere"), ("proj",)])
def test_add_lora_lists_the_layers_for_an_unknown_target(base: Path, targets: tuple[str, ...]) -> None:
    model = load_model(str(base)).model
    layers = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head"
    with pytest.raises(UserError, match=f"No layers named {targets[-1]} in .*: set lora.targets to some of {layers}$"):
        add_lora(model, str(base), settings(targets=targets))
    assert not has_adapter(model)


def test_add_lora_rejects_a_target_that_is_not_linear(base: Path) -> None:
    with pytest.raises(UserError, match=r"lora.targets self_attn are not all linear layers: .* some of q_proj, "):
        add_lora(load_model(str(base)).model, str(base), settings(targets=("self_attn",)))


def test_add_lora_covers_conv1d_layers() -> None:
    model = random_model("gpt2", "sdpa")
    add_lora(model, "x", settings())
    assert any("c_attn.lora_A" in name for name, each in model.named_parameters() if each.requires_grad)


@pytest.mark.parametrize("text", ["{", "[]", '{"base_model_name_or_path": null}', "{}"])
def test_damaged_adapter_config_is_a_one_line_error(base: Path, tmp_path: Path, text: str) -> None:
    folder = tmp_path / "adapter"
    save_model(adapted(base), load_model(str(base)).tokenizer, folder)
    (folder / "adapter_config.json").write_text(text)
    with pytest.raises(UserError, match=r"adapter_config\.json"):
        load_model(str(folder))


def test_damaged_adapter_weights_are_a_one_line_error(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    save_model(adapted(base), load_model(str(base)).tokenizer, folder)
    (folder / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="Cannot read"):
        load_model(str(folder))


def test_adapter_stores_the_absolute_path_of_its_base(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = load_model("./base").model
    add_lora(model, "./base", settings())
    save_model(model, load_model(str(base)).tokenizer, tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        base
    )


def test_missing_peft_error_includes_the_install_command(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'turnwise\[lora\]'"):
        add_lora(load_model(str(base)).model, str(base), settings())
