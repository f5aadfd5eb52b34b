"""Planned and actual memory of a training step: models of 1.5B and 7B parameters on GPUs of 24 and 80 GiB.

    python benchmarks/memory_gpu.py [--case 1.5b] [--case 7b-lora] [--rounds 2] [--seconds 85]

Weights are random, in the shapes of Qwen2.5-1.5B (all weights trained) and Qwen2.5-7B (LoRA of rank 16). Each case runs
in a separate process that torch limits to 24 or 80 GiB, minus the CUDA context. A round is a rollout of 64 episodes of
3 turns, 968 tokens each, and one update on all of them, both as planned. The first round compiles and captures graphs;
later rounds capture again if the KV cache was released.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from turnwise.config.load import build
from turnwise.config.schema import Config
from turnwise.core.learner import StepSettings
from turnwise.core.protocols import Completion, Sampling
from turnwise.core.samples import Sample, TrainSample
from turnwise.core.task import EpisodeKey, Task
from turnwise.data.packing import micro_batches, pack_train
from turnwise.engine.native.engine import NativeEngine
from turnwise.engine.paged.runner import build_paged_runner
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers
from turnwise.models.loading.lora import LoraSettings, add_lora
from turnwise.models.memory.estimate import CUDA_CONTEXT, GIB
from turnwise.models.memory.plan import MemoryPlan
from turnwise.models.memory.shapes import known_config
from turnwise.run.build_learner import build_learner
from turnwise.run.resources import memory_plan
from turnwise.training.learner import LocalLearner

EPISODES, PROMPT, TURNS, NEW, OBSERVATION = 64, 600, 3, 96, 40
"""A round: episodes, tokens of the first prompt, turns, and per turn the sampled tokens and observation tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    shape: str
    gib: float
    rank: int = 0


CASES = {"1.5b": Case(shape="qwen2.5-1.5b", gib=24), "7b-lora": Case(shape="qwen2.5-7b", gib=80, rank=16)}


def make_model(case: Case) -> Any:
    """Create the model on the GPU directly, without a copy in host memory."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(
            known_config(case.shape), dtype=torch.bfloat16, attn_implementation=ATTENTION
        )
    model.eval()
    if case.rank:
        add_lora(model, case.shape, LoraSettings(rank=case.rank, alpha=2.0 * case.rank, targets=(), seed=0))
    return model


def make_engine(config: Config, model: Any, plan: MemoryPlan) -> NativeEngine:
    settings: dict[str, Any] = {"slots": config.rollout.in_flight, "stop_ids": (), "decode": str}
    runner = build_paged_runner(model, **settings, longest=config.rollout.max_tokens, pages=plan.pages)
    return NativeEngine(model, **settings, runner=runner)


def make_contexts(vocabulary: int) -> list[list[list[int]]]:
    """Return random tokens that each episode gets before each turn. Episodes share nothing."""
    rng = torch.Generator().manual_seed(1)
    sizes = [PROMPT, *[OBSERVATION] * (TURNS - 1)]
    by_turn = [torch.randint(20, vocabulary - 1000, (EPISODES, size), generator=rng).tolist() for size in sizes]
    return [list(each) for each in zip(*by_turn, strict=True)]


async def roll_out(engine: NativeEngine, contexts: list[list[list[int]]], round_number: int) -> list[list[Completion]]:
    sampling = Sampling(max_tokens=NEW)

    async def episode(number: int) -> list[Completion]:
        key = EpisodeKey(run_seed=0, round=round_number, task=Task(env="benchmark", seed=number), member=0)
        async with engine.open(key) as session:
            return [await session.generate(ids, sampling) for ids in contexts[number]]

    return await asyncio.gather(*(episode(number) for number in range(EPISODES)))


def make_sample(number: int, contexts: list[list[int]], completions: list[Completion]) -> TrainSample:
    """Return an episode with advantage 1 or -1 and equal weights on all sampled tokens."""
    ids, mask, logprobs = list[int](), list[bool](), list[float]()
    for context, completion in zip(contexts, completions, strict=True):
        ids += [*context, *completion.ids]
        mask += [False] * len(context) + [True] * len(completion.ids)
        logprobs += [0.0] * len(context) + list(completion.logprobs)
    sampled, old = torch.tensor(mask), torch.tensor(logprobs)
    ones = sampled.float()
    sample = Sample(
        trajectory=number,
        ids=torch.tensor(ids),
        mask=sampled,
        turn_ids=torch.where(sampled, 0, -1),
        sampler_logprobs=old,
        temperatures=torch.ones(len(ids)),
    )
    return TrainSample(
        sample=sample,
        old_logprobs=old,
        ref_logprobs=None,
        old_values=None,
        advantages=ones * (1 if number % 2 else -1),
        returns=None,
        weights=ones / (EPISODES * TURNS * NEW),
        value_weights=None,
    )


@dataclass(slots=True, kw_only=True)
class PhaseMeter:
    """Seconds and peak GiB of one phase, allocated by tensors and reserved by torch."""

    seconds: float = 0.0
    allocated: float = 0.0
    reserved: float = 0.0

    def __enter__(self) -> "PhaseMeter":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.seconds = -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize()
        self.seconds += time.perf_counter()
        self.allocated = (torch.cuda.max_memory_allocated() + CUDA_CONTEXT) / GIB
        self.reserved = (torch.cuda.max_memory_reserved() + CUDA_CONTEXT) / GIB


def update(learner: LocalLearner, samples: list[TrainSample], plan: MemoryPlan) -> tuple[dict[str, float], float, int]:
    """Return the metrics of the optimizer step, its seconds, and the number of passes."""
    parts = micro_batches([each.sample for each in samples], plan.micro_tokens)
    learner.forward_backward(pack_train([samples[index] for index in part]) for part in parts)
    torch.cuda.synchronize()
    began = time.perf_counter()
    metrics = learner.step()
    torch.cuda.synchronize()
    return metrics, time.perf_counter() - began, len(parts)


def report_progress(text: str) -> None:
    """Print at once, in case the process later runs out of time or memory."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def run_case(name: str, rounds: int) -> dict[str, Any]:
    """Run a case in this process. The result can be written as JSON."""
    case, began = CASES[name], time.perf_counter()
    torch.set_num_threads(os.cpu_count() or 1)  # all threads update optimizer states on the host
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((case.gib * GIB - CUDA_CONTEXT) / total)
    config = build({}, [("lora.rank", case.rank), ("train.learning_rate", 1e-6)])
    model = make_model(case)
    compile_layers(model)
    plan = memory_plan(config, model)
    engine, learner = (
        make_engine(config, model, plan),
        build_learner(config.algo, config.critic, config.train, model, plan),
    )
    contexts, results = make_contexts(model.config.vocab_size), list[dict[str, Any]]()
    ready = time.perf_counter() - began
    report_progress(f"{name}: ready after {ready:.0f} s; {plan.describe()}")
    for number in range(rounds):
        captured = engine.stats().capture_s
        with PhaseMeter() as rollout:
            completions = asyncio.run(roll_out(engine, contexts, number))
        report_progress(f"{name}: round {number} rollout, {rollout}")
        samples = [make_sample(index, *pair) for index, pair in enumerate(zip(contexts, completions, strict=True))]
        if plan.releases_cache:
            asyncio.run(engine.sleep())
        learner.begin_step(StepSettings(step=number))
        with PhaseMeter() as learning:
            step, step_s, passes = update(learner, samples, plan)
        report_progress(f"{name}: round {number} update, {learning}")
        phases = {"rollout": [rollout.seconds, rollout.allocated, rollout.reserved]}
        phases["update"] = [learning.seconds, learning.allocated, learning.reserved]
        results.append(
            {**phases, "capture_s": engine.stats().capture_s - captured, "step_s": step_s, "passes": passes, **step}
        )
    free, total = torch.cuda.mem_get_info()
    return {
        "plan": plan.describe(),
        "planned": [plan.rollout / GIB, plan.update / GIB, plan.host / GIB],
        "available": plan.device_bytes / GIB,
        "ready_s": ready,
        "rounds": results,
        "context": (total - free - torch.cuda.memory_reserved()) / GIB,
    }


def run_in_subprocess(name: str, rounds: int, seconds: float) -> dict[str, Any] | None:
    """Return the result, or None if the case failed or took too long; it reports on stderr."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "result.json"
        command = [sys.executable, __file__, "--inside", name, "--rounds", str(rounds), "--out", str(out)]
        try:
            subprocess.run(command, check=True, timeout=seconds)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            sys.stderr.write(f"{name}: {type(error).__name__}\n")
            return None
        return json.loads(out.read_text())


def show(results: dict[str, dict[str, Any]]) -> None:
    console = Console(width=150)
    table = Table(
        "case", "round", "phase", "planned GiB", "peak allocated", "peak reserved", "available", "seconds", "details"
    )
    for name, result in results.items():
        console.print(
            f"{name}: {result['plan']}; ready after {result['ready_s']:.0f} s; CUDA context {result['context']:.2f} GiB"
        )
        for number, each in enumerate(result["rounds"]):
            details = {
                "rollout": f"capture {each['capture_s']:.2f}",
                "update": f"optimizer {each['step_s']:.2f}, {each['passes']} passes",
            }
            for index, (phase, detail) in enumerate(details.items()):
                seconds, allocated, reserved = each[phase]
                numbers = (
                    f"{result['planned'][index]:.1f}",
                    f"{allocated:.1f}",
                    f"{reserved:.1f}",
                    f"{result['available']:.1f}",
                )
                table.add_row(name, str(number), phase, *numbers, f"{seconds:.2f}", detail)
            rest = {key: value for key, value in each.items() if isinstance(value, float) and not key.endswith("_s")}
            console.print(f"  round {number}: " + ", ".join(f"{key} {value:.4g}" for key, value in rest.items()))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=85, help="time limit of each case")
    parser.add_argument("--inside", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside is not None:
        args.out.write_text(json.dumps(run_case(args.inside, args.rounds)))
        return
    results = {name: run_in_subprocess(name, args.rounds, args.seconds) for name in args.case or CASES}
    show({name: result for name, result in results.items() if result is not None})
    sys.exit(None in results.values())


if __name__ == "__main__":
    main()
