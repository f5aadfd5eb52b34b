"""B4: a whole training step (rollout, reward, update) of the tiny model on the CPU, compared with TRL's GRPOTrainer.

    .venv/bin/python benchmarks/step_cpu.py --trl-python PATH [--threads 1] [--repeats 7] [--new-tokens 16]
        [--updates 1 4]

PATH is a Python interpreter with TRL (`python -m venv DIR; DIR/bin/pip install torch==2.13.0 'trl==1.16.*'`).

A step is 8 groups of 16 FrozenLake episodes of 5 turns and --updates optimizer steps. Both sides have the same weights,
tokenizer, prompts, tasks, environment code and rewards, fused AdamW, GRPO advantages, PPO's clipped loss as a mean over
tokens with an entropy bonus, float32. Every turn has exactly N sampled tokens and every episode all of its turns, so
that both sides do equal work; each step checks this.

TRL runs with both of its interfaces, `rollout_func` and `environment_factory` (see trl_side.py), each in a separate
process that waits while another side works: transformers' `generate` with KV cache, SDPA attention, no gradient
checkpointing, no logging, saving or evaluation, and the batch sizes that are fastest in a trial before the measurement.
With one optimizer step per generation, its default, TRL takes the old log-probabilities from the update itself; with
more it computes them.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from step_job import PARAMS, SPEC, Job

from turnwise.algos.advantages import Grpo
from turnwise.algos.losses import Ppo, TokenMean
from turnwise.algos.settings import AlgoConfig
from turnwise.config.schema import Config
from turnwise.config.training import TrainConfig
from turnwise.core.protocols import Sampling
from turnwise.core.trajectory import Trajectory
from turnwise.engine.native.engine import NativeEngine
from turnwise.envs.settings import EnvConfig
from turnwise.models.loading.load import LoadedModel
from turnwise.render.renderer import Renderer
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.settings import RewardConfig
from turnwise.rollout.collect import Collector
from turnwise.rollout.context import FullContext
from turnwise.rollout.episode import Limits
from turnwise.rollout.settings import RolloutConfig
from turnwise.run.build import build_rewards
from turnwise.run.build_learner import build_coefficients, build_learner, estimate_settings, update_settings
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.load_policy import load_policy
from turnwise.run.resources import memory_plan
from turnwise.training.estimators.on_policy import estimate
from turnwise.training.sources.played import Played, TaskResults, filter_groups
from turnwise.training.step import Estimate
from turnwise.training.update import update

WAYS = ("rollout_func", "environment_factory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of either side."""

    seconds: float
    cpu_s: float
    """CPU seconds, which other load affects less."""
    rollout_s: float
    """Seconds of the rollout, including rewards."""
    sampled: list[int]
    """Sampled tokens of each episode."""
    tokens: int
    """Tokens of all episodes, including prompts and observations."""
    prompts: list[list[int]]


Side = Callable[[int], Step]
"""(number of the step) -> its measurement."""
MakeEngine = Callable[[LoadedModel, Renderer, Job], NativeEngine]


def cpu_engine(loaded: LoadedModel, renderer: Renderer, job: Job) -> NativeEngine:
    return NativeEngine(loaded.model, slots=job.episodes, stop_ids=(), decode=renderer.decode)


def config_of(job: Job) -> Config:
    return Config(
        rollout=RolloutConfig(groups=job.groups, group_size=job.group_size, max_new_tokens=job.new_tokens),
        reward=RewardConfig(format_penalty=job.format_penalty),
        algo=AlgoConfig(
            advantage=Grpo(),
            loss=Ppo(clip_low=job.clip_low, clip_high=job.clip_high, dual_clip=None),
            aggregation=TokenMean(),
            entropy_coef=job.entropy_coef,
        ),
        train=TrainConfig(
            learning_rate=job.learning_rate,
            mini_batch=job.mini_batch,
            max_grad_norm=job.max_grad_norm,
        ),
    )


def turnwise_side(job: Job, loaded: LoadedModel, make_engine: MakeEngine = cpu_engine) -> Side:
    """Take steps as `turnwise train` does, without recording them."""
    config, renderer = config_of(job), Renderer(loaded.tokenizer)
    plan = memory_plan(config, loaded.model)
    learner = build_learner(config.algo, config.critic, config.train, loaded.model, plan)
    collector = Collector(
        policy=make_engine(loaded, renderer, job),
        make_env=SPEC.make,
        context=FullContext(renderer),
        limits=Limits(sampling=Sampling(max_tokens=job.new_tokens), max_tokens=4096, timeout_s=3600),
        in_flight=job.episodes,
        attempts=1,
        run_seed=0,
    )
    source = Played(
        tasks=job.source(),
        results=TaskResults(job.source()),
        collector=collector,
        greedy=None,
        rewards=build_rewards(config.reward, config.rollout, JudgeRegistry(), renderer.decode),
        select=partial(filter_groups, learner=learner, algo=config.algo, micro_tokens=plan.micro_tokens),
        scale=lambda share: 1.0,
        count=job.groups,
        group_size=job.group_size,
        refill=0,
        show=lambda phase, done, total: None,
    )
    estimation, updating = (
        estimate_settings(config.algo, config.reward, plan.micro_tokens),
        update_settings(config.algo, config.critic, config.train, config.seed, plan.micro_tokens),
    )
    assert not updating.skip_idle

    async def play(number: int, done: list[tuple[float, Sequence[Trajectory]]]) -> None:
        rollout = await source.groups(number)
        rolled_out = time.perf_counter()
        estimated = estimate(rollout.kept, learner, estimation, build_coefficients(config.algo))
        assert isinstance(estimated, Estimate)
        update(learner, estimated, updating, number)
        done.append((rolled_out, estimated.trajectories))

    def step(number: int) -> Step:
        done: list[tuple[float, Sequence[Trajectory]]] = []
        began, began_cpu = time.perf_counter(), time.process_time()
        asyncio.run(play(number, done))
        synchronize(job)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
        ((rolled_out, trajectories),) = done
        return step_of(trajectories, seconds=seconds, cpu_s=cpu_s, rollout_s=rolled_out - began)

    return step


def synchronize(job: Job) -> None:
    if job.device != "cpu":
        torch.cuda.synchronize()


def step_of(trajectories: Sequence[Trajectory], **times: float) -> Step:
    turns = [turn for each in trajectories for turn in each.turns]
    return Step(
        **times,
        sampled=[each.num_sampled for each in trajectories],
        tokens=sum(len(turn.context_ids) + len(turn.action_ids) for turn in turns),
        prompts=[list(each.turns[0].context_ids) for each in trajectories],
    )


class TrlSide:
    """A TRL process, which takes a step for every line that it receives."""

    def __init__(self, way: str, job: Job, steps: int, args: argparse.Namespace) -> None:
        request = {
            "way": way,
            "job": asdict(job),
            "steps": steps,
            "threads": args.threads,
            "micro_batches": args.micro_batch,
            "generation_batches": args.generation_batch,
        }
        here = Path(__file__).resolve().parent
        paths = [str(here.parent / "src"), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "OMP_NUM_THREADS": str(args.threads),
            "TRL_EXPERIMENTAL_SILENCE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "HF_HUB_OFFLINE": "1",
            "MASTER_PORT": str(29500 + WAYS.index(way)),  # for vLLM's process group of one
        }
        self._process = subprocess.Popen(
            [args.trl_python, str(here / "trl_side.py"), json.dumps(request)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.chosen: dict[str, int] = self._answer()

    def __call__(self, number: int) -> Step:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return Step(**self._answer())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the TRL process exited with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def check(job: Job, steps: Sequence[Step]) -> None:
    """Check that all sides had the same prompts and trained on equally many episodes and sampled tokens."""
    for step in steps:
        assert step.sampled == [job.turns * job.new_tokens] * job.episodes
        assert sorted(step.prompts) == sorted(steps[0].prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    job: Job
    sides: dict[str, list[Step]]
    chosen: dict[str, dict[str, int]]

    def rows(self) -> list[list[str]]:
        ours = self.sides["turnwise"]
        return [self._row(name, steps, ours) for name, steps in self.sides.items()]

    def _row(self, name: str, steps: list[Step], ours: list[Step]) -> list[str]:
        seconds = [step.seconds for step in steps]
        pairs = list(zip(ours, steps, strict=True))
        ratios = [there.seconds / here.seconds for here, there in pairs]
        return [
            str(self.job.updates),
            name,
            f"{statistics.median(seconds):.3f}",
            f"{min(seconds):.3f} to {max(seconds):.3f}",
            f"{statistics.median(step.cpu_s for step in steps):.3f}",
            f"{statistics.median(step.rollout_s for step in steps):.3f}",
            f"{statistics.median(step.seconds - step.rollout_s for step in steps):.3f}",
            str(sum(steps[0].sampled)),
            f"{statistics.mean(step.tokens for step in steps):.0f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            f"{statistics.median(there.cpu_s / here.cpu_s for here, there in pairs):.2f}",
            " / ".join(str(self.chosen[name][each]) for each in ("batch", "micro_batch"))
            if name in self.chosen
            else "",
        ]


def measure(job: Job, ours: Side, args: argparse.Namespace) -> Comparison:
    theirs = {way: TrlSide(way, job, args.warm_up + args.repeats, args) for way in args.ways}
    sides: dict[str, Side] = {**theirs, "turnwise": ours}
    measured: dict[str, list[Step]] = {name: [] for name in sides}
    for number in range(args.warm_up + args.repeats):
        steps = {name: side(number) for name, side in sides.items()}
        check(job, list(steps.values()))
        summary = ", ".join(f"{name} {step.seconds:.2f} s" for name, step in steps.items())
        Console(stderr=True).print(f"step {number + 1}: {summary}", highlight=False)
        if number >= args.warm_up:
            for name, step in steps.items():
                measured[name].append(step)
    for side in theirs.values():
        side.close()
    return Comparison(job=job, sides=measured, chosen={name: side.chosen for name, side in theirs.items()})


def show(measured: Sequence[Comparison], args: argparse.Namespace) -> None:
    job = measured[0].job
    title = (
        f"{job.episodes} episodes in {job.groups} groups, {job.turns} turns of {job.new_tokens} tokens, {job.device}, "
        f"{args.threads} thread(s), medians of {args.repeats} alternating repeats"
    )
    table = Table(title=title)
    columns = [
        "optimizer\nsteps",
        "side",
        "s per step",
        "from .. to",
        "CPU s",
        "rollout\ns",
        "update\ns",
        "sampled\ntokens",
    ]
    for name in [*columns, "all\ntokens", "ratio", "from .. to", "ratio of\nCPU time", "TRL batches:\nrollout / loss"]:
        table.add_column(name, justify="left" if name == "side" else "right")
    for each in measured:
        for row in each.rows():
            table.add_row(*row)
        table.add_section()
    Console(width=175).print(table)


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", required=True, help="Python interpreter with TRL")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="interfaces of TRL")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2, help="steps before the measurement")
    parser.add_argument("--new-tokens", type=int, default=16, help="sampled tokens per turn")
    parser.add_argument("--updates", type=int, nargs="+", default=[1, 4], help="optimizer steps per training step")
    parser.add_argument(
        "--micro-batch", type=int, nargs="+", help="numbers of episodes per backward pass to try for TRL"
    )
    parser.add_argument(
        "--generation-batch", type=int, nargs="+", help="batch sizes of `generate` to try in rollout_func"
    )
    return parser


def main() -> None:
    parser = argument_parser(__doc__)
    parser.set_defaults(micro_batch=[8, 16, 32], generation_batch=[128, 32])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    start = Config(env=EnvConfig(params=PARAMS))
    measured = []
    for updates in args.updates:
        loaded, _ = load_policy(start, build_environment_mix(start.env, start.agent), lambda done, total: None)
        job = Job(model=loaded.name, new_tokens=args.new_tokens, updates=updates)
        measured.append(measure(job, turnwise_side(job, loaded), args))
        show(measured, args)


if __name__ == "__main__":
    main()
