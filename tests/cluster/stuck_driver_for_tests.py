"""Driver with a Ray cluster of its own and an environment worker, whose environment is in the middle of a long step.

Without `EnvWorkerPool`, which imports torch.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

import ray

from turnwise.cluster.env_worker import EnvLease, EnvWorker, WorkerParts
from turnwise.cluster.session import open_session
from turnwise.config.resources import ClusterConfig
from turnwise.core.messages import Message, assistant, user
from turnwise.core.protocols import Env, Observation, StepResult
from turnwise.core.task import Task

LONG_S = 600.0


class Stuck:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    async def start(self) -> Observation:
        return Observation(messages=(user("Go."),))

    async def step(self, action: Message) -> StepResult:
        self.mark.touch()
        time.sleep(LONG_S)  # blocks the worker's event loop
        return StepResult(terminated=True)

    async def close(self) -> None: ...


def build(mark: Path) -> WorkerParts:
    def make(task: Task, member: int, attempt: int) -> Env:
        return Stuck(mark)

    async def close() -> None: ...

    return WorkerParts(make_env=make, close=close)


async def step_on_a_worker(lease: EnvLease, mark: Path) -> None:
    env = lease.make(Task(env="stuck", seed=0, split="train"), 0, 0)
    await env.start()
    step = asyncio.ensure_future(env.step(assistant("hi")))
    while not mark.exists():
        await asyncio.sleep(0.01)
    sys.stdout.write("stuck\n")
    sys.stdout.flush()
    await step


if __name__ == "__main__":
    mark = Path(f"stuck-{os.getpid()}").absolute()
    with open_session(ClusterConfig(env_workers=1), gpus_per_engine=0) as session:
        worker = session.launch(EnvWorker, session.placement.env_workers[0], "environment worker 0", LONG_S)
        ray.get(worker.start.remote(lambda: build(mark)))
        asyncio.run(step_on_a_worker(EnvLease(actor=worker, number=0), mark))
