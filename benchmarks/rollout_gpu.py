"""B1 and B7: rolling out on one GPU, the engine in process against vLLM.

    python benchmarks/rollout_gpu.py [--repeats 7] [--vllm] [--growth [--figure FILE.svg]]

B1: 512 episodes in flight, 5 turns of 48 sampled and 60 observation tokens after a first prompt of 200, SmolLM2-135M in
bfloat16, temperature 1, the sampled token's log-probability returned. Prompts and observations are random tokens:
nothing is shared between episodes. Turns have a fixed length, so that both sides do equal work.

--vllm    the same job in vLLM, in a process of its own, its engine inside that process (its fastest way), prefix
          caching on, all turns of the batch in one `generate` call; with and without log-probabilities. The variable
          VLLM_PATH names the folder that holds the package, where it is not installed.
--growth  B7: the same turns from 64 to 4,096 episodes, and first prompts of up to 8,192 tokens.
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
"""Random tokens are drawn from these: no special ones."""


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

    def texts(self) -> list[list[list[int]]]:
        """Of each episode what it is told before each of its turns."""
        chance = torch.Generator().manual_seed(1)
        sizes = [self.prompt] + [self.observation] * (self.turns - 1)
        told = [torch.randint(FIRST_ID, VOCABULARY, (self.episodes, size), generator=chance).tolist() for size in sizes]
        return [list(each) for each in zip(*told, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    side: str
    job: Job
    seconds: list[float]
    memory_gib: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def native(model: Any, job: Job, repeats: int, steps: int = 8) -> Reading:
    stops: list[int] = []
    texts = job.texts()
    before = torch.cuda.memory_allocated()
    runner = build_paged_runner(
        model, slots=job.episodes, longest=job.longest, stop_ids=stops, decode=str, steps=steps, share=0.8
    )
    held = torch.cuda.memory_allocated() - before
    engine = NativeEngine(model, slots=job.episodes, stop_ids=stops, decode=str, runner=runner)
    seconds = []
    for _ in range(repeats + 1):  # the first one compiles and captures
        torch.cuda.synchronize()
        began = time.perf_counter()
        said = asyncio.run(play(engine, texts, job))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    check(said, job)
    return Reading(side="turnwise", job=job, seconds=seconds[1:], memory_gib=held / 2**30)


async def play(engine: NativeEngine, texts: list[list[list[int]]], job: Job) -> list[list[Completion]]:
    sampling = Sampling(max_tokens=job.new_tokens)

    async def episode(number: int) -> list[Completion]:
        key = EpisodeKey(run_seed=0, round=0, task=Task(env="benchmark", seed=number), member=0)
        async with engine.open(key) as session:
            return [await session.generate(ids, sampling) for ids in texts[number]]

    return await asyncio.gather(*(episode(number) for number in range(job.episodes)))


def check(said: list[list[Completion]], job: Job) -> None:
    """Everything was sampled, with log-probabilities that can be."""
    for completions in said:
        assert len(completions) == job.turns
        for each in completions:
            assert len(each.ids) == len(each.logprobs) == job.new_tokens
            assert all(value <= 0 for value in each.logprobs)


def vllm_in_its_process(job: Job, repeats: int, logprobs: bool) -> Reading:
    """Runs this file again, where vLLM and its own packages come first."""
    path = os.pathsep.join(each for each in (os.environ.get("VLLM_PATH"), os.environ.get("PYTHONPATH")) if each)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "seconds.json"
        order = {"job": asdict(job), "repeats": repeats, "logprobs": logprobs, "model": str(smollm2_folder())}
        command = [sys.executable, str(Path(__file__).with_name("vllm_side.py")), json.dumps(order), str(out)]
        environment = {**os.environ, "PYTHONPATH": path, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        subprocess.run(command, check=True, env=environment)
        seconds = json.loads(out.read_text())
    side = "vLLM, log-probabilities" if logprobs else "vLLM, none"
    return Reading(side=side, job=job, seconds=seconds)


def growth() -> list[Job]:
    by_episodes = [Job(episodes=episodes) for episodes in (64, 256, 1024, 4096)]
    return [*by_episodes, *(Job(episodes=64, prompt=prompt, turns=3) for prompt in (512, 2048, 8192))]


def episodes_of(reading: Reading) -> int:
    return reading.job.episodes


def show(readings: list[Reading]) -> None:
    table = Table("side", "episodes", "prompt", "seconds, median", "lowest", "highest", "ms an episode", "GiB of cache")
    for each in readings:
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
    given = parser.parse_args()
    model = load_model("smollm2-135m", device="cuda", attn_implementation=ATTENTION).model.requires_grad_(False)
    compile_layers(model)
    readings = [native(model, Job(), given.repeats)]
    show(readings)
    if given.vllm:
        torch.cuda.empty_cache()
        readings += [vllm_in_its_process(Job(), given.repeats, logprobs) for logprobs in (True, False)]
        readings.append(native(model, Job(), given.repeats))
        show(readings)
    if given.growth:
        for job in growth():
            torch.cuda.empty_cache()
            readings.append(native(model, job, 3))
            show(readings)
    if given.figure is not None:
        own = sorted((each for each in readings if each.side == "turnwise" and each.job.turns == 5), key=episodes_of)
        points = [(each.job.episodes, each.median / each.job.episodes * 1e3, each.memory_gib) for each in own]
        given.figure.write_text(growth_svg(points), encoding="utf-8")


if __name__ == "__main__":
    main()
