"""B1 and B7: rollout on one GPU, the native engine compared with vLLM.

    python benchmarks/rollout_gpu.py [--repeats 7] [--vllm] [--growth [--figure FILE.svg]]

B1: 512 concurrent episodes, 5 turns of 48 sampled and 60 observation tokens after a first prompt of 200, SmolLM2-135M
in bfloat16, temperature 1, with the log-probability of each sampled token. Prompts and observations are random tokens,
so episodes share nothing. Turns have a fixed length, so that both sides do equal work.

--vllm    the same job in vLLM, in a separate process that contains its engine (its fastest mode), with prefix caching,
          one `generate` call per turn for the whole batch, with and without log-probabilities.
--growth  B7: from 64 to 4,096 episodes, and first prompts of up to 8,192 tokens.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

import torch
from growth_figure import growth_svg
from measuring_gpu import Measurement, measure_vllm, release_memory, show, timed
from rollout_job import RolloutJob

from turnwise.core.protocols import Completion, Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers
from turnwise.models.loading.load import load_model
from turnwise.models.loading.smollm2 import smollm2_folder

VLLM_ARGUMENTS = {"dtype": "bfloat16", "gpu_memory_utilization": 0.5, "skip_tokenizer_init": True}


def measure_native(model: Any, job: RolloutJob, repeats: int, steps: int = 8) -> Measurement:
    stops: list[int] = []
    contexts = job.text()
    before = torch.cuda.memory_allocated()
    runner = build_paged_runner(
        model, slots=job.episodes, longest=job.longest, stop_ids=stops, decode=str, steps=steps, share=0.8
    )
    allocated = torch.cuda.memory_allocated() - before
    engine = NativeEngine(model, slots=job.episodes, stop_ids=stops, decode=str, runner=runner)
    seconds = []
    for _ in range(repeats + 1):  # the first one includes compilation and graph capture
        completions, elapsed = timed(lambda: asyncio.run(roll_out(engine, contexts, job)))
        seconds.append(elapsed)
    check(completions, job)
    side = f"turnwise, {job.turns} turns, prompt of {job.prompt}"
    return Measurement(side=side, count=job.episodes, seconds=seconds[1:], memory_gib=allocated / 2**30)


async def roll_out(engine: NativeEngine, contexts: list[list[list[int]]], job: RolloutJob) -> list[list[Completion]]:
    sampling = Sampling(max_tokens=job.new_tokens)

    async def episode(number: int) -> list[Completion]:
        key = EpisodeKey(run_seed=0, round=0, task=Task(env="benchmark", seed=number), member=0)
        async with engine.open(key) as session:
            return [await session.generate(ids, sampling) for ids in contexts[number]]

    return await asyncio.gather(*(episode(number) for number in range(job.episodes)))


def check(episodes: list[list[Completion]], job: RolloutJob) -> None:
    """Check the number of sampled tokens, and that no log-probability is positive."""
    for completions in episodes:
        assert len(completions) == job.turns
        for each in completions:
            assert len(each.ids) == len(each.logprobs) == job.new_tokens
            assert all(value <= 0 for value in each.logprobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    model = load_model("smollm2-135m", device="cuda", attn_implementation=ATTENTION).model.requires_grad_(False)
    compile_layers(model)
    job = RolloutJob()
    measurements = [measure_native(model, job, args.repeats)]
    show("rollout", "episodes", measurements)
    if args.vllm:
        release_memory()
        others = measure_vllm(job, smollm2_folder(), args.repeats, VLLM_ARGUMENTS)
        show("rollout", "episodes", [*others, *measurements, measure_native(model, job, args.repeats)])
    if args.growth:
        for episodes in (64, 256, 1024, 4096):
            release_memory()
            measurements.append(measure_native(model, RolloutJob(episodes=episodes), 3))
        by_prompt = [RolloutJob(episodes=64, prompt=prompt, turns=3) for prompt in (512, 2048, 8192)]
        show("growth", "episodes", [*measurements, *(measure_native(model, each, 3) for each in by_prompt)])
    if args.figure is not None:
        points = sorted((each.count, each.median / each.count * 1e3, each.memory_gib) for each in measurements)
        args.figure.write_text(growth_svg(points), encoding="utf-8")


if __name__ == "__main__":
    main()
