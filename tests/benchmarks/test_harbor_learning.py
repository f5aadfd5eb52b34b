"""The tasks of benchmarks/harbor_learning.py: solve.sh gets 1, doing nothing gets 0."""

import asyncio
import random
import sys
from pathlib import Path

import pytest

from turnwise.envs.adapters.harbor.episode import Machine
from turnwise.envs.adapters.harbor.task_folder import HarborTask, load_tasks

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import harbor_learning

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


def test_generated_tasks_reward_their_solution_alone(tmp_path: Path) -> None:
    rng = random.Random(0)
    for make in harbor_learning.KINDS:
        table = harbor_learning.make_table(rng)
        harbor_learning.write_task(tmp_path / make.__name__, "train", table, make(rng, table))
    machine = Machine(memory_mb=512, disk_mb=16, packages=())

    async def play(task: HarborTask, *, solve: bool) -> float:
        shell = await machine.open(task)
        if solve:
            await shell.run(task.solution or "", timeout_s=60.0)
        return (await machine.verify(task, shell, "reward")).reward

    async def play_all() -> dict[str, tuple[float, float]]:
        return {
            task.name: (await play(task, solve=True), await play(task, solve=False))
            for task in load_tasks(str(tmp_path)).tasks
        }

    assert asyncio.run(play_all()) == {make.__name__: (1.0, 0.0) for make in harbor_learning.KINDS}


def test_write_tasks_divides_different_tasks(tmp_path: Path) -> None:
    harbor_learning.write_tasks(tmp_path, 50, seed=1)
    tasks = load_tasks(str(tmp_path))
    assert {split: len(tasks.of_split(split)) for split in tasks.splits} == {"train": 35, "validation": 5, "test": 10}
