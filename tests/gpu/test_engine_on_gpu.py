"""The engine on a GPU: CUDA graphs, compiled Triton kernels, bfloat16. `make test-gpu` runs these."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from active_plan_for_tests import gradients
from constraints_for_tests import (
    SCHEMA,
    constraint_of,
    sample_all,
    trained_model,
    trajectory_of,
)
from constraints_for_tests import make_engine as constrained_engine
from episodes_for_tests import renderer as text_renderer
from models_for_tests import FAMILIES, random_model
from talks_for_tests import STOP_ID, Talks, full_forward_logprobs, key, prompt, run_talks, text_of
from turnwise.algos.critics import TrunkCriticSettings
from turnwise.algos.settings import AlgoConfig
from turnwise.config.training import TrainConfig
from turnwise.core.learner import Needs
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.samples import Sample
from turnwise.data.packing import pack, unpack
from turnwise.data.samples import build_samples
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers
from turnwise.models.loading.load import load_model
from turnwise.run.build_learner import build_learner
from vision_models_for_tests import write_vision_model
from visual_talks_for_tests import engine_of, play_all, renderer_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: make test-gpu runs this where there is one"),
]

TALKS: Talks = [
    (key(seed, member), [prompt(seed, 90), prompt(seed + 20, 5 + 7 * member), prompt(seed + 30, 9)])
    for seed in range(6)
    for member in range(3)
]


def engine_on_gpu(model: Any, slots: int = 32, **settings: Any) -> NativeEngine:
    common = {"slots": slots, "stop_ids": [STOP_ID], "decode": text_of}
    runner = build_paged_runner(model, **common, **{"longest": 320, "prefill_tokens": 1024} | settings)
    return NativeEngine(model, **common, runner=runner)


@pytest.mark.parametrize("family", FAMILIES)
def test_gpu_logprobs_match_a_full_forward_on_the_cpu(family: str) -> None:
    model = random_model(family, ATTENTION).cuda()
    said = run_talks(engine_on_gpu(model), TALKS, Sampling(max_tokens=7, temperature=0.8))
    for (_, contexts), completions in zip(TALKS, said, strict=True):
        ours = torch.tensor([value for completion in completions for value in completion.logprobs])
        expected = full_forward_logprobs(family, contexts, completions, 0.8)
        torch.testing.assert_close(ours, expected, atol=5e-3, rtol=5e-3)


def ids_of(said: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[each.ids for each in completions] for completions in said]


def share_equal(said: list[list[Completion]], other: list[list[Completion]]) -> float:
    """Sampling settings of the turns."""
    pairs = zip(chain(*ids_of(said)), chain(*ids_of(other)), strict=True)
    return sum(one == two for one, two in pairs) / (3 * len(TALKS))


def test_gpu_compiled_layers_sample_what_plain_ones_do() -> None:
    sampling = Sampling(max_tokens=9)
    plain = run_talks(engine_on_gpu(random_model("llama", ATTENTION).cuda()), TALKS, sampling)
    model = random_model("llama", ATTENTION).cuda()
    compile_layers(model)
    compiled = run_talks(engine_on_gpu(model), TALKS, sampling)
    assert share_equal(plain, compiled) >= 0.95  # rounding may draw another token once in a while


def test_gpu_graphs_use_new_weights_without_a_new_capture() -> None:
    model = random_model("llama", ATTENTION).cuda()
    engine = engine_on_gpu(model)
    sampling = Sampling(max_tokens=7)
    before = run_talks(engine, TALKS, sampling)
    graphs = engine._runner._device.graphs  # type: ignore[attr-defined]
    captures = graphs.captures
    assert captures > 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    after = run_talks(engine, TALKS, sampling)
    assert graphs.captures == captures
    assert ids_of(before) != ids_of(after)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.div_(1.5)
    again = run_talks(engine, TALKS, sampling)
    assert share_equal(before, again) >= 0.95


def test_gpu_eviction_does_not_change_what_is_sampled() -> None:
    model = random_model("llama", ATTENTION).cuda()
    engine = engine_on_gpu(model, slots=18, pages=14)
    said = run_talks(engine, TALKS, Sampling(max_tokens=7))
    assert engine.stats().counts["evicted_tokens"] > 0
    for (_, contexts), completions in zip(TALKS, said, strict=True):
        ours = torch.tensor([value for completion in completions for value in completion.logprobs])
        expected = full_forward_logprobs("llama", contexts, completions, 1.0)
        torch.testing.assert_close(ours, expected, atol=5e-3, rtol=5e-3)


def samples_of_talks(said: list[list[Completion]]) -> list[Sample]:
    samples = []
    for number, ((_, contexts), completions) in enumerate(zip(TALKS, said, strict=True)):
        ids: list[int] = []
        logprobs: list[float] = []
        mask: list[bool] = []
        for context, completion in zip(contexts, completions, strict=True):
            ids += [*context, *completion.ids]
            logprobs += [*(0.0 for _ in context), *completion.logprobs]
            mask += [*(False for _ in context), *(True for _ in completion.ids)]
        chosen = torch.tensor(mask)
        samples.append(
            Sample(
                trajectory=number,
                ids=torch.tensor(ids),
                mask=chosen,
                turn_ids=torch.where(chosen, 0, -1),
                sampler_logprobs=torch.tensor(logprobs),
                temperatures=torch.ones(len(ids)),
            )
        )
    return samples


def test_gpu_learner_agrees_with_the_sampler_in_bfloat16() -> None:
    """Shared prompts, different lengths, compiled layers: the full path of a training run."""
    model = random_model("llama", ATTENTION).cuda().bfloat16()
    model.requires_grad_(True)
    compile_layers(model)
    samples = samples_of_talks(run_talks(engine_on_gpu(model), TALKS, Sampling(max_tokens=40)))
    learner = build_learner(AlgoConfig(), TrunkCriticSettings(), TrainConfig(), model)
    batch = pack(samples)
    assert max(batch.parents) >= 0
    (scores,) = learner.score([batch], Needs(policy_logprobs=True))
    sampler = torch.cat([samples[index].sampler_logprobs[samples[index].mask] for index in batch.order])
    assert scores.policy_logprobs is not None
    assert float((scores.policy_logprobs - sampler).abs().mean()) < 0.02


def test_gpu_two_engines_run_side_by_side() -> None:
    model = random_model("llama", ATTENTION).cuda()
    first, second = engine_on_gpu(model), engine_on_gpu(model)

    async def both() -> Any:
        async def one(engine: NativeEngine) -> list[list[Completion]]:
            async def talk(episode: Any, contexts: list[list[int]]) -> list[Completion]:
                async with engine.open(episode) as session:
                    return [await session.generate(context, Sampling(max_tokens=5)) for context in contexts]

            return await asyncio.gather(*(talk(*each) for each in TALKS))

        return await asyncio.gather(one(first), one(second))

    one, other = asyncio.run(both())
    assert ids_of(one) == ids_of(other)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl", "gemma3", "tiny_vlm"])
def test_gpu_engine_and_learner_logprobs_agree_with_images(name: str, tmp_path: Path) -> None:
    """Qwen3-VL also adds features to the outputs of layers. In Gemma 3, tokens of an image attend to all of it."""
    folder = name if name == "tiny_vlm" else str(write_vision_model(name, tmp_path / name))
    loaded = load_model(folder, device="cuda", dtype="float32", attn_implementation=ATTENTION)
    renderer = renderer_of(loaded)
    played = asyncio.run(play_all(engine_of(loaded, renderer, paged=True), renderer))
    batch = pack([sample for sample, _ in played])
    learner = build_learner(AlgoConfig(), TrunkCriticSettings(), TrainConfig(), loaded.model)
    (scores,) = learner.score([batch], Needs(policy_logprobs=True))
    assert scores.policy_logprobs is not None
    for (_, sampled), scored in zip(played, unpack(batch, scores.policy_logprobs), strict=True):
        torch.testing.assert_close(scored.cpu(), torch.tensor(sampled), atol=5e-3, rtol=5e-3)
    assert played[0][1] != played[2][1]  # the members see different first images


def test_gpu_constrained_turns_match_and_agree_with_the_learner(optional_part: Callable[[str], NoReturn]) -> None:
    """Masks inside the CUDA graph of a decoding step, and in the chunks of the learner's head."""
    if find_spec("llguidance") is None:
        optional_part("llguidance is not installed")
    free = Sampling(max_tokens=60)
    bound = replace(free, constraint=constraint_of(SCHEMA))
    samplings, prompts = [free, bound, bound, free] * 4, [1, 1, 2, 3] * 4
    model = trained_model().cuda()
    model.requires_grad_(True)
    engine = constrained_engine(model, paged=True)
    said = sample_all(engine, samplings, prompts)
    for sampling, completion in zip(samplings, said, strict=True):
        if sampling.constraint is not None:
            assert set(json.loads(text_renderer().decode(completion.ids[:-1]))) == set(SCHEMA["properties"])
    alone = sample_all(constrained_engine(model, paged=True), [free] * len(samplings), prompts)
    pairs = [(one.ids, two.ids) for one, two in zip(said, alone, strict=True) if one.constraint is None]
    assert sum(one == two for one, two in pairs) >= len(pairs) - 1  # rounding may draw another token
    trajectories = [trajectory_of(each, number) for each, number in zip(said, prompts, strict=True)]
    samples = build_samples(trajectories, text_renderer().grammars.allowed_sets)
    batch = pack(samples)
    (scores,) = build_learner(AlgoConfig(), TrunkCriticSettings(), TrainConfig(), model).score(
        [batch], Needs(policy_logprobs=True, entropy=True)
    )
    assert scores.policy_logprobs is not None and scores.entropy is not None
    for sample, logprobs in zip(samples, unpack(batch, scores.policy_logprobs), strict=True):
        torch.testing.assert_close(logprobs, sample.sampler_logprobs[sample.mask], atol=5e-3, rtol=5e-3)
    assert bool(scores.entropy.isfinite().all())
    *_, gpu = gradients(model, batch)
    *_, cpu = gradients(trained_model(), batch)
    for name, grad in cpu.items():
        torch.testing.assert_close(gpu[name], grad, atol=1e-2 * float(grad.abs().max()), rtol=1e-2)
