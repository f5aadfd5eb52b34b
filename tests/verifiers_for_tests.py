"""Environments of verifiers in its own Python, and short episodes and runs on them."""

import asyncio
from pathlib import Path
from typing import Any

from episodes_for_tests import context, key_of, limits, says
from gateway_for_tests import RecordingPolicy, full_contexts
from runs_for_tests import metrics, quiet
from turnwise.core.messages import Message, text_parts
from turnwise.core.protocols import StepResult
from turnwise.core.task import Split, Task
from turnwise.core.trajectory import Trajectory
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvRunner
from turnwise.record.run_folder import RunFolder
from turnwise.rollout.collect import Collector
from turnwise.run.configure import configure
from turnwise.run.train import train

ROOT = Path(__file__).parents[1]
NEWEST = ROOT / ".venv-verifiers" / "bin" / "python"
CLASSIC = NEWEST.parents[1] / "classic" / "bin" / "python"
SMALL = {
    "model.warmup_steps": "1",
    "rollout.groups": "2",
    "rollout.group_size": "2",
    "train.steps": "2",
    "train.mini_batch": "4",
    "eval.episodes": "1",
    "rollout.max_new_tokens": "16",
    "system.threads": "1",
}


def params_of(name: str, **params: Any) -> dict[str, Any]:
    """Return the parameters of an environment in tests/verifiers: FILE or classic FILE, by its imports."""
    file = ROOT / "tests" / "verifiers" / name
    newest = "verifiers.v1" in file.read_text(encoding="utf-8")
    return {"package": str(file), "python": str(NEWEST if newest else CLASSIC), **params}


def task_in(params: dict[str, Any], split: Split = "train", index: int = 0) -> Task:
    spec = load_spec("verifiers")
    return Task(env=spec.name, params=spec.check_params(params), seed=seed_for(split, index), split=split)


def make(params: dict[str, Any], split: Split = "train", index: int = 0) -> EnvRunner:
    return load_spec("verifiers").make(task_in(params, split, index))


def play(params: dict[str, Any], *replies: str, split: Split = "train", index: int = 0) -> list[StepResult]:
    """Play replies until the episode ends, and return the environment's answers."""

    async def run() -> list[StepResult]:
        env = make(params, split, index)
        try:
            await env.start()
            return [await env.step(Message(role="assistant", parts=text_parts(reply))) for reply in replies]
        finally:
            await env.close()

    return asyncio.run(run())


def opening(params: dict[str, Any], split: Split, index: int) -> str:
    async def run() -> str:
        env = make(params, split, index)
        try:
            return (await env.start()).messages[-1].content
        finally:
            await env.close()

    return asyncio.run(run())


def collect(params: dict[str, Any], *replies: str, index: int = 0) -> Trajectory:
    """Return an episode whose policy writes these replies byte by byte. Its tokens must be those that were sampled."""
    policy = RecordingPolicy(says(*replies))
    collector = Collector(
        policy=policy,
        make_env=load_spec("verifiers").make,
        context=context(),
        limits=limits(max_new_tokens=200),
        in_flight=1,
        attempts=1,
        run_seed=0,
    )
    (trajectory,) = asyncio.run(collector.episodes([key_of(task_in(params, index=index))]))
    recorded = [(before, turn.action_ids) for before, turn in full_contexts(trajectory.turns)]
    assert recorded == [(before, completion.ids) for before, completion in policy.samples]
    assert all(turn.extends for turn in trajectory.turns[1:])
    return trajectory


def train_on(params: dict[str, Any], folder: Path, **overrides: str) -> list[dict[str, Any]]:
    """Train for a few steps and return the recorded episodes."""
    settings = {f"env.params.{name}": str(value) for name, value in params.items() if name != "package"}
    given = {**SMALL, **settings, **overrides, "record.folder": str(folder), "record.name": "run"}
    train(configure(f"verifiers:{params['package']}", overrides=list(given.items())), console=quiet())
    assert [row["step"] for row in metrics(folder / "run") if "train/policy_loss" in row][-1:] == [2]
    run = RunFolder.open(folder / "run")
    return [run.read_trajectory(entry) for part in (None, "before", "after") for entry in run.read_index(part)]
