"""Memory plans, and estimates against measurements."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models_for_tests import FAMILIES, random_model
from turnwise.core.errors import UserError
from turnwise.engine.paged.cache import cache_shape, max_pages, page_bytes
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.lora import LoraSettings, add_lora
from turnwise.models.memory.estimate import CUDA_CONTEXT, GIB, MemoryEstimate
from turnwise.models.memory.plan import (
    EFFICIENT_TOKENS,
    MAX_TOKENS,
    PAGE,
    RESERVED_SHARE,
    MemoryPlan,
    MemoryRequest,
    plan_memory,
)
from turnwise.models.memory.shapes import KNOWN_MODELS, config_shape, known_config, load_config, model_shape

REQUEST = MemoryRequest(slots=256, max_context=2048, page_size=PAGE, prefill_tokens=16384, cache_share=0.4)
PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
}
SHAPES = {name: config_shape(known_config(name)) for name in KNOWN_MODELS}


def planned(name: str, gib: float, rank: int = 0, **changes: object) -> MemoryPlan:
    shape = config_shape(known_config(name), rank=rank) if rank else SHAPES[name]
    return plan_memory(MemoryEstimate(shape=shape), replace(REQUEST, **changes), int(gib * GIB))  # type: ignore[arg-type]


def options(plan: MemoryPlan) -> tuple[bool, bool, bool]:
    return plan.recompute, plan.releases_cache, plan.optimizer_on_host


def size(plan: MemoryPlan, name: str) -> tuple[int, int, int]:
    return next(((item.rollout, item.update, item.host) for item in plan.items if item.name == name), (0, 0, 0))


def test_known_models_have_the_right_number_of_parameters() -> None:
    assert {name: shape.parameters for name, shape in SHAPES.items()} == PARAMETERS
    assert all(shape.trained == shape.parameters for shape in SHAPES.values())
    assert config_shape(known_config("qwen2.5-7b"), rank=16).trained == 40_370_176


@pytest.mark.parametrize(("tokens", "gib"), [(32768, 22.1), (65536, 37.8)])
def test_estimate_matches_the_measured_update_of_smollm2(tokens: int, gib: float) -> None:
    estimate = MemoryEstimate(shape=SHAPES["smollm2-135m"])
    trained = estimate.shape.trained
    states = (
        estimate.parameters + estimate.master_weights(trained, False) + estimate.moments(trained, False) + 4 * trained
    )
    found = states + estimate.activations(tokens, False) + estimate.working(tokens, False)
    assert states / GIB == pytest.approx(2.3, abs=0.1)
    assert found / GIB == pytest.approx(gib, rel=0.01)
    assert (estimate.graphs(16384, 256) + CUDA_CONTEXT) / GIB == pytest.approx(1.5, abs=0.2)


def test_plan_trains_1_5b_parameters_on_24_gib() -> None:
    for gib in (24, 24e9 / GIB):
        plan = planned("qwen2.5-1.5b", gib)
        assert plan.fits and plan.optimizer_on_host
        assert plan.micro_tokens >= EFFICIENT_TOKENS
    full = SHAPES["qwen2.5-1.5b"].parameters
    assert size(plan, "float32 master weights") == (0, 0, 4 * full)
    assert size(plan, "optimizer moments") == (0, 0, 8 * full)
    assert size(plan, "float32 gradients") == (0, 4 * full, 0)
    assert size(plan, "parameters") == (2 * full, 2 * full, 0)


def test_plan_trains_an_adapter_of_7b_parameters_on_80_gib() -> None:
    for gib in (80, 80e9 / GIB):
        plan = planned("qwen2.5-7b", gib, rank=16)
        assert plan.fits and not plan.optimizer_on_host and not plan.releases_cache
    with pytest.raises(
        UserError, match=r"even with .* but only 24.0 GiB are available: train an adapter \(lora.rank 16\)"
    ):
        planned("qwen2.5-7b", 24)


def test_plan_prefers_the_cheapest_options() -> None:
    """From a large GPU to ever smaller ones, with contexts of up to 4,096 tokens."""
    plans = [planned("qwen2.5-0.5b", gib, max_context=4096) for gib in (139, 80, 48, 32, 24, 20, 16)]
    assert options(plans[0]) == (False, False, False)
    assert plans[0].micro_tokens == MAX_TOKENS
    cost = [4 * plan.optimizer_on_host + 2 * plan.releases_cache + plan.recompute for plan in plans]
    assert cost == sorted(cost)
    assert len(set(cost)) >= 3
    same_options = [(a, b) for a, b in pairwise(plans) if options(a) == options(b)]
    assert same_options
    assert all(a.micro_tokens >= b.micro_tokens for a, b in same_options)


CHOICES = [None, False, True]


@settings(max_examples=60)
@given(
    gib=st.floats(1, 150),
    name=st.sampled_from(["smollm2-135m", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"]),
    optimizer_on_host=st.sampled_from(CHOICES),
    recompute=st.sampled_from(CHOICES),
    releases_cache=st.sampled_from(CHOICES),
    micro_tokens=st.sampled_from([None, 3000, 40_000]),
    critic=st.booleans(),
    reference=st.booleans(),
    engines=st.sampled_from([1, 2]),
    max_context=st.sampled_from([100, 2048, 20_000]),
)
def test_plan_fits_and_respects_fixed_options(gib: float, name: str, **requested: object) -> None:
    all_fixed = None not in (
        requested["optimizer_on_host"],
        requested["recompute"],
        requested["releases_cache"],
        requested["micro_tokens"],
    )
    try:
        plan = planned(name, gib, **requested)
    except UserError as error:
        assert not all_fixed
        assert "\n" not in str(error)
        return
    assert all_fixed or max(plan.rollout, plan.update) <= (1 - RESERVED_SHARE) * plan.device_bytes
    for field in ("optimizer_on_host", "recompute", "releases_cache", "micro_tokens"):
        assert requested[field] in (None, getattr(plan, field))
    longest = requested["max_context"]
    assert isinstance(longest, int)
    assert requested["micro_tokens"] is not None or longest <= plan.micro_tokens <= MAX_TOKENS
    assert plan.pages is not None
    assert -(-longest // PAGE) < plan.pages <= max_pages(REQUEST.slots, longest)


def test_plan_keeps_fixed_options_even_if_they_do_not_fit() -> None:
    plan = planned("qwen2.5-7b", 8, optimizer_on_host=False, recompute=False, releases_cache=False, micro_tokens=9000)
    assert not plan.fits
    assert (options(plan), plan.micro_tokens) == ((False, False, False), 9000)


def test_plan_releases_the_cache_and_graphs_during_updates() -> None:
    kept, released = (planned("qwen2.5-0.5b", 139, releases_cache=each) for each in (False, True))
    for name in ("KV cache", "CUDA graphs"):
        rollout, update, _ = size(kept, name)
        assert rollout == update > 0
        assert size(released, name) == (rollout, 0, 0)


def test_plan_counts_critic_reference_and_opponent() -> None:
    plain = planned("qwen2.5-0.5b", 139)
    each = 2 * SHAPES["qwen2.5-0.5b"].parameters
    with_all = planned("qwen2.5-0.5b", 139, critic=True, reference=True, engines=2)
    for name in ("critic", "reference model", "frozen opponent"):
        assert size(plain, name) == (0, 0, 0)
        assert size(with_all, name) == (each, each, 0)
    for name in ("float32 master weights", "optimizer moments", "float32 gradients"):
        assert size(with_all, name)[1] == 2 * size(plain, name)[1]
    muon = size(planned("qwen2.5-0.5b", 139, muon=True), "optimizer moments")[0]
    table = 151_936 * 896
    assert size(plain, "optimizer moments")[0] - muon == pytest.approx(4 * (each / 2 - table), rel=0.01)
    adapted = planned("qwen2.5-0.5b", 139, rank=8, reference=True)
    rollout, update, _ = size(adapted, "reference model")
    assert 0 < rollout == update < each / 50, "a copy of the adapter, not of the model"


def test_plan_reports_too_little_host_memory() -> None:
    estimate = MemoryEstimate(shape=SHAPES["qwen2.5-1.5b"])
    assert plan_memory(estimate, REQUEST, 24 * GIB, host_bytes=32 * GIB).optimizer_on_host
    with pytest.raises(UserError, match="of host memory"):
        plan_memory(estimate, REQUEST, 24 * GIB, host_bytes=8 * GIB)


@pytest.mark.parametrize("family", FAMILIES)
def test_config_shape_matches_the_model_in_every_family(family: str) -> None:
    model = random_model(family, ATTENTION)
    shape = model_shape(model)
    assert shape == config_shape(FAMILIES[family], parameter_bytes=4)
    assert shape.parameters == sum(each.numel() for each in model.parameters())
    assert MemoryEstimate(shape=shape).kv_cache(PAGE) == page_bytes(cache_shape(model), torch.float32)
    assert shape.intermediate > 0 and 0 < shape.matrices < shape.trained


@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj")])
def test_config_shape_predicts_the_adapter(targets: tuple[str, ...]) -> None:
    pytest.importorskip("peft")
    model = random_model("qwen2", ATTENTION, torch.bfloat16)
    expected = config_shape(model.config, rank=4, targets=targets)
    add_lora(model, "test", LoraSettings(rank=4, alpha=8, targets=targets, seed=0))
    assert model_shape(model) == expected
    assert expected.adapter


def test_load_config_by_name_or_folder(tmp_path: Path) -> None:
    assert load_config("Qwen/Qwen2.5-1.5B-Instruct").hidden_size == 1536
    assert load_config("tiny").num_hidden_layers == 2
    FAMILIES["granite, scaled logits"].save_pretrained(tmp_path)
    assert load_config(str(tmp_path)).model_type == "granite"
    with pytest.raises(UserError, match=r'did you mean "qwen2\.5-7b"'):
        load_config("qwen2.5-7")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="Cannot read"):
        load_config(str(tmp_path))


def test_plan_counts_an_engine_that_manages_its_own_memory() -> None:
    kept, released = (planned("qwen2.5-0.5b", 139, engine_share=0.25, releases_cache=each) for each in (False, True))
    share = int(0.25 * kept.device_bytes)
    assert (size(kept, "engine"), size(released, "engine")) == ((share, share, 0), (share, 0, 0))
    assert kept.pages is None
    assert size(kept, "KV cache") == size(kept, "CUDA graphs") == (0, 0, 0)
