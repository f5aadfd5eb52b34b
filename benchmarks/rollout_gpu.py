"""B1 and B7: rollout on one GPU, the native engine compared with vLLM.

    python benchmarks/rollout_gpu.py [--repeats 7] [--vllm] [--growth [--figure FILE.svg]]

B1: 512 concurrent episodes, 5 turns of 48 sampled and 60 observation tokens after a first prompt of 200, SmolLM2-135M
in bfloat16, temperature 1, with the log-probability of each sampled token. Prompts and observations are random tokens,
so episodes share nothing. Turns have a fixed length, so that both sides do equal work.

--vllm    the same job in vLLM, in a separate process that contains its engine (its fastest mode), with prefix caching,
          one `generate` call per turn for the whole batch, with and without log-probabilities. The environment variable
          VLLM_PATH names the folder of the package if it is not installed.
--growth  B7: from 64 to 4,096 episodes, and first prompts of up to 8,192 tokens.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from growth_figure import growth_svg
from rich.console import Console
from rich.table import Table

from turnwise.core.protocols import Completion, Sampling
from turnwise.core.task import EpisodeKey, Task
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers
from turnwise.models.loading.load import load_model
from turnwise.models.loading.smollm2 import smollm2_folder

FIRST_ID, VOCABULARY = 20, 49000
"""Range of the random tokens, without special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    episodes: int = 512
    turns: int = 5
    prompt: int = 200
    observation: int = 60
    new_tokens: int = 48

    @property
    def longest(self) -> int:
        return self.prompt + self.turns * (self.observation + self.new_tokens)

    def contexts(self) -> list[list[list[int]]]:
        """Return the tokens that each episode gets before each turn."""
        rng = torch.Generator().manual_seed(1)
        sizes = [self.prompt] + [self.observation] * (self.turns - 1)
        by_turn = [torch.randint(FIRST_ID, VOCABULARY, (self.episodes, size), generator=rng).tolist() for size in sizes]
        return [list(each) for each in zip(*by_turn, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    side: str
    job: Job
    seconds: list[float]
    memory_gib: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def measure_native(model: Any, job: Job, repeats: int, steps: int = 8) -> Measurement:
    stops: list[int] = []
    contexts = job.contexts()
    before = torch.cuda.memory_allocated()
    runner = build_paged_runner(
        model, slots=job.episodes, longest=job.longest, stop_ids=stops, decode=str, steps=steps, share=0.8
    )
    allocated = torch.cuda.memory_allocated() - before
    engine = NativeEngine(model, slots=job.episodes, stop_ids=stops, decode=str, runner=runner)
    seconds = []
    for _ in range(repeats + 1):  # the first one includes compilation and graph capture
        torch.cuda.synchronize()
        began = time.perf_counter()
        completions = asyncio.run(roll_out(engine, contexts, job))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    check(completions, job)
    return Measurement(side="turnwise", job=job, seconds=seconds[1:], memory_gib=allocated / 2**30)


async def roll_out(engine: NativeEngine, contexts: list[list[list[int]]], job: Job) -> list[list[Completion]]:
    sampling = Sampling(max_tokens=job.new_tokens)

    async def episode(number: int) -> list[Completion]:
        key = EpisodeKey(run_seed=0, round=0, task=Task(env="benchmark", seed=number), member=0)
        async with engine.open(key) as session:
            return [await session.generate(ids, sampling) for ids in contexts[number]]

    return await asyncio.gather(*(episode(number) for number in range(job.episodes)))


def check(episodes: list[list[Completion]], job: Job) -> None:
    """Check the number of sampled tokens, and that no log-probability is positive."""
    for completions in episodes:
        assert len(completions) == job.turns
        for each in completions:
            assert len(each.ids) == len(each.logprobs) == job.new_tokens
            assert all(value <= 0 for value in each.logprobs)


def measure_vllm(job: Job, repeats: int, logprobs: bool) -> Measurement:
    """Run vllm_side.py in a process in which vLLM and its packages come first on the path."""
    path = os.pathsep.join(each for each in (os.environ.get("VLLM_PATH"), os.environ.get("PYTHONPATH")) if each)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "seconds.json"
        request = {"job": asdict(job), "repeats": repeats, "logprobs": logprobs, "model": str(smollm2_folder())}
        command = [sys.executable, str(Path(__file__).with_name("vllm_side.py")), json.dumps(request), str(out)]
        environment = {**os.environ, "PYTHONPATH": path, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        subprocess.run(command, check=True, env=environment)
        seconds = json.loads(out.read_text())
    side = "vLLM, log-probabilities" if logprobs else "vLLM, no log-probabilities"
    return Measurement(side=side, job=job, seconds=seconds)


def growth_jobs() -> list[Job]:
    by_episodes = [Job(episodes=episodes) for episodes in (64, 256, 1024, 4096)]
    return [*by_episodes, *(Job(episodes=64, prompt=prompt, turns=3) for prompt in (512, 2048, 8192))]


def episodes_of(measurement: Measurement) -> int:
    return measurement.job.episodes


def show(measurements: list[Measurement]) -> None:
    table = Table(
        "side", "episodes", "prompt", "seconds, median", "lowest", "highest", "ms per episode", "GiB of KV cache"
    )
    for each in measurements:
        numbers = (each.median, min(each.seconds), max(each.seconds))
        row = (each.side, str(each.job.episodes), str(each.job.prompt), *(f"{number:.3f}" for number in numbers))
        table.add_row(*row, f"{each.median / each.job.episodes * 1e3:.2f}", f"{each.memory_gib:.1f}")
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    model = load_model("smollm2-135m", device="cuda", attn_implementation=ATTENTION).model.requires_grad_(False)
    compile_layers(model)
    measurements = [measure_native(model, Job(), args.repeats)]
    show(measurements)
    if args.vllm:
        torch.cuda.empty_cache()
        measurements += [measure_vllm(Job(), args.repeats, logprobs) for logprobs in (True, False)]
        measurements.append(measure_native(model, Job(), args.repeats))
        show(measurements)
    if args.growth:
        for job in growth_jobs():
            torch.cuda.empty_cache()
            measurements.append(measure_native(model, job, 3))
            show(measurements)
    if args.figure is not None:
        turnwise = sorted(
            (each for each in measurements if each.side == "turnwise" and each.job.turns == 5), key=episodes_of
        )
        points = [(each.job.episodes, each.median / each.job.episodes * 1e3, each.memory_gib) for each in turnwise]
        args.figure.write_text(growth_svg(points), encoding="utf-8")


if __name__ == "__main__":
    main()
