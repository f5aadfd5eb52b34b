"""What goes where, by arithmetic that measurements stand behind."""

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
from turnwise.engine.paged.state import PAGE
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.lora import LoraSettings, add_lora
from turnwise.models.memory.estimate import CUDA_CONTEXT, GIB, MemoryEstimate
from turnwise.models.memory.plan import (
    EFFICIENT_TOKENS,
    MAX_TOKENS,
    RESERVED_SHARE,
    MemoryPlan,
    MemoryRequest,
    plan_memory,
)
from turnwise.models.memory.shapes import KNOWN_MODELS, config_shape, known_config, load_config, model_shape

DEMAND = MemoryRequest(slots=256, longest=2048, page=PAGE, prefill_tokens=16384, cache_share=0.4)
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
    return plan_memory(MemoryEstimate(shape=shape), replace(DEMAND, **changes), int(gib * GIB))  # type: ignore[arg-type]


def measures(plan: MemoryPlan) -> tuple[bool, bool, bool]:
    return plan.recompute, plan.releases_cache, plan.on_host


def size(plan: MemoryPlan, name: str) -> tuple[int, int, int]:
    return next(((part.rollout, part.update, part.host) for part in plan.parts if part.name == name), (0, 0, 0))


def test_known_shapes_have_the_parameters_that_their_models_have() -> None:
    assert {name: shape.parameters for name, shape in SHAPES.items()} == PARAMETERS
    assert all(shape.trained == shape.parameters for shape in SHAPES.values())
    assert config_shape(known_config("qwen2.5-7b"), rank=16).trained == 40_370_176


@pytest.mark.parametrize(("tokens", "gib"), [(32768, 22.1), (65536, 37.8)])
def test_an_update_of_smollm2_takes_what_was_measured(tokens: int, gib: float) -> None:
    needs = MemoryEstimate(shape=SHAPES["smollm2-135m"])
    trained = needs.shape.trained
    states = needs.parameters + needs.masters(trained, False) + needs.moments(trained, False) + 4 * trained
    found = states + needs.activations(tokens, False) + needs.working(tokens, False)
    assert states / GIB == pytest.approx(2.3, abs=0.1)
    assert found / GIB == pytest.approx(gib, rel=0.01)
    assert (needs.graphs(16384, 256) + CUDA_CONTEXT) / GIB == pytest.approx(1.5, abs=0.2)


def test_a_model_of_one_and_a_half_billion_trains_on_24_gigabytes() -> None:
    for gib in (24, 24e9 / GIB):
        plan = planned("qwen2.5-1.5b", gib)
        assert plan.fits and plan.on_host
        assert plan.micro_tokens >= EFFICIENT_TOKENS
    full = SHAPES["qwen2.5-1.5b"].parameters
    assert size(plan, "float32 masters") == (0, 0, 4 * full)
    assert size(plan, "optimiser's moments") == (0, 0, 8 * full)
    assert size(plan, "gradients, float32") == (0, 4 * full, 0)
    assert size(plan, "parameters") == (2 * full, 2 * full, 0)


def test_an_adapter_of_a_model_of_seven_billion_trains_on_80_gigabytes() -> None:
    for gib in (80, 80e9 / GIB):
        plan = planned("qwen2.5-7b", gib, rank=16)
        assert plan.fits and not plan.on_host and not plan.releases_cache
    with pytest.raises(UserError, match=r"even with .* and there are 24.0: train an adapter \(--lora.rank 16\)"):
        planned("qwen2.5-7b", 24)


def test_what_costs_least_is_done_first() -> None:
    """From a large GPU to ever smaller ones, with 4,096 tokens at the longest."""
    plans = [planned("qwen2.5-0.5b", gib, longest=4096) for gib in (139, 80, 48, 32, 24, 20, 16)]
    assert measures(plans[0]) == (False, False, False)
    assert plans[0].micro_tokens == MAX_TOKENS
    cost = [4 * plan.on_host + 2 * plan.releases_cache + plan.recompute for plan in plans]
    assert cost == sorted(cost)
    assert len(set(cost)) >= 3
    sames = [(a, b) for a, b in pairwise(plans) if measures(a) == measures(b)]
    assert sames
    assert all(a.micro_tokens >= b.micro_tokens for a, b in sames)


GIVEN = [None, False, True]


@settings(max_examples=60)
@given(
    gib=st.floats(1, 150),
    name=st.sampled_from(["smollm2-135m", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"]),
    on_host=st.sampled_from(GIVEN),
    recompute=st.sampled_from(GIVEN),
    releases_cache=st.sampled_from(GIVEN),
    micro_tokens=st.sampled_from([None, 3000, 40_000]),
    critic=st.booleans(),
    reference=st.booleans(),
    engines=st.sampled_from([1, 2]),
    longest=st.sampled_from([100, 2048, 20_000]),
)
def test_a_plan_fits_and_what_is_given_is_kept_to(gib: float, name: str, **asked: object) -> None:
    given_all = None not in (asked["on_host"], asked["recompute"], asked["releases_cache"], asked["micro_tokens"])
    try:
        plan = planned(name, gib, **asked)
    except UserError as error:
        assert not given_all
        assert "\n" not in str(error)
        return
    assert given_all or max(plan.rollout, plan.update) <= (1 - RESERVED_SHARE) * plan.room
    for field in ("on_host", "recompute", "releases_cache", "micro_tokens"):
        assert asked[field] in (None, getattr(plan, field))
    longest = asked["longest"]
    assert isinstance(longest, int)
    assert asked["micro_tokens"] is not None or longest <= plan.micro_tokens <= MAX_TOKENS
    assert plan.pages is not None
    assert -(-longest // PAGE) < plan.pages <= max_pages(DEMAND.slots, longest)


def test_everything_given_is_done_as_given_even_where_it_will_not_fit() -> None:
    plan = planned("qwen2.5-7b", 8, on_host=False, recompute=False, releases_cache=False, micro_tokens=9000)
    assert not plan.fits
    assert (measures(plan), plan.micro_tokens) == ((False, False, False), 9000)


def test_what_is_given_back_and_what_stays() -> None:
    kept, given_back = (planned("qwen2.5-0.5b", 139, releases_cache=each) for each in (False, True))
    for name in ("keys and values", "the engine's graphs"):
        rollout, update, _ = size(kept, name)
        assert rollout == update > 0
        assert size(given_back, name) == (rollout, 0, 0)


def test_further_models_are_counted() -> None:
    plain = planned("qwen2.5-0.5b", 139)
    each = 2 * SHAPES["qwen2.5-0.5b"].parameters
    with_all = planned("qwen2.5-0.5b", 139, critic=True, reference=True, engines=2)
    for name in ("critic", "reference model", "frozen opponent"):
        assert size(plain, name) == (0, 0, 0)
        assert size(with_all, name) == (each, each, 0)
    for name in ("float32 masters", "optimiser's moments", "gradients, float32"):
        assert size(with_all, name)[1] == 2 * size(plain, name)[1]
    muon = size(planned("qwen2.5-0.5b", 139, muon=True), "optimiser's moments")[0]
    table = 151_936 * 896
    assert size(plain, "optimiser's moments")[0] - muon == pytest.approx(4 * (each / 2 - table), rel=0.01)
    adapted = planned("qwen2.5-0.5b", 139, rank=8, reference=True)
    rollout, update, _ = size(adapted, "reference model")
    assert 0 < rollout == update < each / 50, "the adapter that the run began with, and not the model"


def test_a_host_that_is_too_small_is_said() -> None:
    needs = MemoryEstimate(shape=SHAPES["qwen2.5-1.5b"])
    assert plan_memory(needs, DEMAND, 24 * GIB, host_room=32 * GIB).on_host
    with pytest.raises(UserError, match="of the host's memory"):
        plan_memory(needs, DEMAND, 24 * GIB, host_room=8 * GIB)


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_of_all_families_are_those_of_the_models(family: str) -> None:
    model = random_model(family, ATTENTION)
    shape = model_shape(model)
    assert shape == config_shape(FAMILIES[family], number_bytes=4)
    assert shape.parameters == sum(each.numel() for each in model.parameters())
    assert MemoryEstimate(shape=shape).cached(PAGE) == page_bytes(cache_shape(model), torch.float32)
    assert shape.inner > 0 and 0 < shape.matrices < shape.trained


@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj")])
def test_an_adapter_to_come_is_counted_as_it_will_be(targets: tuple[str, ...]) -> None:
    pytest.importorskip("peft")
    model = random_model("qwen2", ATTENTION, torch.bfloat16)
    expected = config_shape(model.config, rank=4, targets=targets)
    add_lora(model, "test", LoraSettings(rank=4, alpha=8, targets=targets, seed=0))
    assert model_shape(model) == expected
    assert expected.adapter


def test_a_configuration_is_found_by_name_or_in_a_folder(tmp_path: Path) -> None:
    assert load_config("Qwen/Qwen2.5-1.5B-Instruct").hidden_size == 1536
    assert load_config("tiny").num_hidden_layers == 2
    FAMILIES["granite, scaled logits"].save_pretrained(tmp_path)
    assert load_config(str(tmp_path)).model_type == "granite"
    with pytest.raises(UserError, match=r'did you mean "qwen2\.5-7b"'):
        load_config("qwen2.5-7")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        load_config(str(tmp_path))
