"""A served environment whose process is killed in mid-episode: the retried episode has the reward that it earns."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from episodes_for_tests import context, limits, says
from processes_for_tests import forked_with_output, run_turnwise
from turnwise.core.messages import Message
from turnwise.core.protocols import Env, MakeEnv, Observation, StepResult
from turnwise.core.task import Task
from turnwise.core.trajectory import Trajectory
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.network.ports import listen
from turnwise.rollout.collect import Collector

ENV = "game_2048"
"""Tiles appear at random, so another random stream would show other boards."""
MOVES = [f"<answer>{move}</answer>" for move in ("Left", "Up", "Right", "Down")]


class KilledOnce:
    """An environment whose third step is preceded by `kill`, in its first attempt."""

    def __init__(self, env: Env, kill: Callable[[], None]) -> None:
        self._env, self._kill, self._steps = env, kill, 0

    async def start(self) -> Observation:
        return await self._env.start()

    async def step(self, action: Message) -> StepResult:
        self._steps += 1
        if self._steps == 3:
            await asyncio.to_thread(self._kill)
        return await self._env.step(action)

    async def close(self) -> None:
        await self._env.close()


def collect(make_env: MakeEnv, task: Task) -> Trajectory:
    collector = Collector(
        policy=says(*MOVES),
        make_env=make_env,
        context=context(),
        limits=limits(),
        in_flight=1,
        attempts=2,
        run_seed=0,
    )
    gathered = asyncio.run(collector.collect([task], group_size=1, round=0))
    ((trajectory,),) = [group.trajectories for group in gathered.groups]
    return trajectory


def said(trajectory: Trajectory) -> list[Any]:
    turns = [(turn.context_ids, turn.action_ids, turn.reward) for turn in trajectory.turns]
    return [*turns, trajectory.status, trajectory.attempt]


def test_killed_server_costs_no_wrong_reward(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    command = ["serve-env", ENV, "--port", str(port), "--env.params.target", "16"]
    with ExitStack() as stack:

        def serve() -> Any:
            server, lines = stack.enter_context(forked_with_output(run_turnwise, command, cwd=tmp_path))
            assert str(port) in lines.readline()
            return server

        servers, killed = [serve()], list[int]()

        def kill() -> None:
            os.kill(servers[-1].pid, signal.SIGKILL)
            killed.append(servers[-1].pid)
            servers.append(serve())

        remote = load_spec("openenv")
        params = remote.check_params({"server": f"http://127.0.0.1:{port}"})

        def make(task: Task, member: int, attempt: int) -> Env:
            env = remote.make(task, member, attempt)
            return KilledOnce(env, kill) if not killed else env

        task = Task(env="openenv", params=params, seed=seed_for("train", 0))
        interrupted, whole = collect(make, task), collect(remote.make, task)
        os.kill(servers[-1].pid, signal.SIGINT)
    assert len(killed) == 1 and len(whole.turns) > 3
    assert said(interrupted) == said(whole)
