"""Installation checks, choice of publisher and merged adapters of the vLLM engine, without vLLM."""

import copy
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from turnwise.core.errors import UserError
from turnwise.engine.engines import Native, Vllm
from turnwise.engine.options import EngineOptions
from turnwise.engine.vllm import build, installation
from turnwise.engine.vllm.weights import FilePublisher, adapter_layers, merge_adapter, name_in_vllm, wrapped_layers
from turnwise.models.loading.lora import LoraSettings, add_lora, load_adapter
from turnwise.models.loading.tiny import tiny_model, tiny_tokenizer
from turnwise.render.renderer import Renderer

VLLM = Vllm()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that pretends that a version of vLLM with these requirements is installed."""

    def install(version: str, *requirements: str) -> None:
        monkeypatch.setattr(installation, "installed_vllm", lambda: ("vllm", Version(version)))
        monkeypatch.setattr(metadata, "requires", lambda name: list(requirements))

    return install


def test_missing_vllm_is_an_error_with_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "installed_vllm", lambda: None)
    with pytest.raises(UserError, match=r"needs vLLM, which is not installed\. Run `pip install vllm`"):
        VLLM.check()
    Vllm(urls=("http://localhost:8000",)).check()
    Native().check()


@pytest.mark.parametrize("version", ["0.25.3", "0.33.0", "1.0"])
def test_unknown_version_of_vllm_is_an_error(installed: Any, version: str) -> None:
    installed(version)
    with pytest.raises(UserError, match=rf"works with vLLM 0\.26 to 0\.32, and {version} is installed"):
        VLLM.check()


def test_versions_that_vllm_does_not_accept_are_an_error(installed: Any) -> None:
    installed("0.32.0", f"torch=={torch.__version__.partition('+')[0]}", "transformers>=4", "numpy<1")
    VLLM.check()
    installed("0.32.0", "torch==1.0; sys_platform == 'never'", 'torch==1.0; extra == "old"', "transformers<5")
    with pytest.raises(UserError, match=r"vllm 0\.32\.0 needs transformers<5, and .* is installed"):
        VLLM.check()


def test_vllm_on_a_gpu_without_ray_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "device_of", lambda model: torch.device("cuda"))
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    options = EngineOptions(slots=1, max_tokens=64)
    with pytest.raises(UserError, match=r"needs Ray.* Run `pip install 'turnwise\[ray\]'`"):
        VLLM.build(tiny_model(), Renderer(tiny_tokenizer()), options)


def test_model_that_vllm_cannot_run_is_an_error(installed: Any) -> None:
    installed("0.32.0")
    tokenizer = tiny_tokenizer()
    renderer = Renderer(tokenizer, (tokenizer.eos_token_id,), "")
    with pytest.raises(UserError, match="has no heads of size 16"):
        VLLM.build(tiny_model(), renderer, EngineOptions(slots=4, max_tokens=64))
    with pytest.raises(UserError, match=r"rollout\.max_tokens 5000 is more than the 4096 positions"):
        VLLM.build(tiny_model(), renderer, EngineOptions(slots=4, max_tokens=5000))


@pytest.mark.parametrize(
    "model", [tiny_model(), GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50)).eval()]
)
def test_published_adapter_is_merged_into_the_base_weights(model: Any) -> None:
    names = [name for name, _ in model.named_parameters()]
    adapted = copy.deepcopy(model)
    add_lora(adapted, "base", LoraSettings(rank=2, alpha=6.0, targets=(), seed=0))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    merged = dict(merge_adapter(dict(adapted.named_parameters()), adapter_layers(adapted)))
    assert sorted(merged) == sorted(names)
    model.load_state_dict(merged, strict=False)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        expected, found = adapted(ids).logits, model(ids).logits
    assert torch.allclose(found, expected, atol=1e-4)


def test_adapter_is_published_apart_from_its_base(tmp_path: Path) -> None:
    model = tiny_model()
    base = {name: tensor.clone() for name, tensor in model.named_parameters()}
    add_lora(model, "base", LoraSettings(rank=2, alpha=6.0, targets=(), seed=0))
    publisher = FilePublisher(model, tmp_path, merges=False)
    for version in (1, 2):
        published = publisher.write(version, model)
        publisher.keep(published)
    assert published.adapter is not None
    written = load_file(published.path)
    assert written.keys() == base.keys()
    assert all(torch.equal(written[name], base[name]) for name in base)
    restored = tiny_model()
    load_adapter(restored, published.adapter)
    assert dict(restored.named_parameters()).keys() == dict(model.named_parameters()).keys()
    assert sorted(each.name for each in published.path.parent.iterdir()) == ["base.safetensors", "version-2"]


def test_cache_on_a_cpu_is_within_the_engines_share_of_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    page, free_pages = 4096, 10_000
    monkeypatch.setattr(build.os, "sysconf", {"SC_AVPHYS_PAGES": free_pages, "SC_PAGE_SIZE": page}.__getitem__)
    model = tiny_model(0)
    tokens_of = build.MemoryEstimate(shape=build.model_shape(model), compiled=False).kv_cache

    def cache(slots: int, share: float) -> int:
        return build._cache_bytes(model, EngineOptions(slots=slots, max_tokens=64), share)

    assert cache(4, 1.0) == tokens_of(4 * 64), "what the slots need"
    assert cache(10**6, 0.5) == page * free_pages // 2
    assert cache(10**6, 1e-9) == tokens_of(2 * 64), "two episodes at least"


class Wrapper(torch.nn.Module):
    """A LoRA layer of vLLM 0.26."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = torch.nn.Linear(2, 2)


class LoadingWrapper(Wrapper):
    """A LoRA layer of later versions."""

    def load_weights(self, weights: Any) -> None:
        raise NotImplementedError


def test_parameters_of_wrapped_layers_are_named_where_vllm_has_them() -> None:
    block = torch.nn.ModuleDict(
        {"qkv_proj": Wrapper(), "o_proj": LoadingWrapper(), "down_proj": Wrapper(), "norm": torch.nn.LayerNorm(2)}
    )
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([block]), "embed_tokens": Wrapper()})
    wrapped, packed = wrapped_layers(model), {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    found = {
        name: name_in_vllm(name, wrapped, packed)
        for name in (
            "layers.0.q_proj.weight",
            "layers.0.q_proj.bias",
            "layers.0.down_proj.weight",
            "layers.0.o_proj.weight",
            "layers.0.norm.weight",
            "embed_tokens.weight",
            "lm_head.weight",
        )
    }
    assert found == {
        "layers.0.q_proj.weight": "layers.0.q_proj.base_layer.weight",
        "layers.0.q_proj.bias": "layers.0.q_proj.base_layer.bias",
        "layers.0.down_proj.weight": "layers.0.down_proj.base_layer.weight",
        "layers.0.o_proj.weight": "layers.0.o_proj.weight",
        "layers.0.norm.weight": "layers.0.norm.weight",
        "embed_tokens.weight": "embed_tokens.base_layer.weight",
        "lm_head.weight": "lm_head.weight",
    }
