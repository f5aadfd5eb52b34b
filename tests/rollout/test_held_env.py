"""Environments held for agents in other processes, by environment servers and by the cluster's workers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure
from turnwise.core.messages import Message, assistant, user
from turnwise.core.protocols import Observation, StepResult
from turnwise.rollout.held_env import HeldEnv
from virtual_time_for_tests import block, follow_virtual_time, run_in_virtual_time

ACTION = assistant("go")


class Scripted:
    """An environment whose step runs `work`."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self.work, self.closed = work, 0

    async def start(self) -> Observation:
        return Observation(messages=(user("Go."),))

    async def step(self, action: Message) -> StepResult:
        await self.work()
        return StepResult(reward=0.5)

    async def close(self) -> None:
        self.closed += 1


async def wait_for_long() -> None:
    await asyncio.sleep(40)


async def block_for_long() -> None:
    block(40)


async def fail() -> None:
    raise KeyError("it broke")


def held(work: Callable[[], Awaitable[Any]], timeout_s: float = 60.0, *, per_call: bool = False) -> HeldEnv[Scripted]:
    return HeldEnv(Scripted(work), timeout_s=timeout_s, close_s=1.0, setting="--limit", per_call=per_call)


@pytest.mark.parametrize("work", [wait_for_long, block_for_long])
def test_held_env_returns_the_seconds_of_its_own_code(
    work: Callable[[], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two environments side by side: time in which one blocks the event loop is not the other's."""
    follow_virtual_time(monkeypatch)

    async def steps(env: HeldEnv[Scripted]) -> list[tuple[StepResult, float]]:
        return [await env.step(ACTION) for _ in range(2)]

    async def both() -> list[list[tuple[StepResult, float]]]:
        return await asyncio.gather(steps(held(work, 600.0)), steps(held(work, 600.0)))

    for taken in run_in_virtual_time(both()):
        assert [result.reward for result, _ in taken] == [0.5, 0.5]
        assert [seconds for _, seconds in taken] == pytest.approx([40, 40])


@pytest.mark.parametrize("per_call", [False, True])
def test_held_env_limits_the_episode_or_each_call(per_call: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    follow_virtual_time(monkeypatch)

    async def two_steps() -> None:
        env = held(wait_for_long, per_call=per_call)
        await env.step(ACTION)
        await env.step(ACTION)

    if per_call:
        run_in_virtual_time(two_steps())
    else:
        with pytest.raises(InfrastructureFailure, match="80 s in total, more than --limit 60"):
            run_in_virtual_time(two_steps())


def test_held_env_attributes_failures_to_the_environment() -> None:
    with pytest.raises(
        EnvironmentFailure, match=r"the environment's step raised KeyError: 'it broke' at test_held_env"
    ):
        asyncio.run(held(fail).step(ACTION))


def test_held_env_that_is_closed_ends_its_running_call(monkeypatch: pytest.MonkeyPatch) -> None:
    follow_virtual_time(monkeypatch)
    env = held(wait_for_long)

    async def close_in_mid_step() -> None:
        step = asyncio.ensure_future(env.step(ACTION))
        await asyncio.sleep(1)
        await env.close()
        await env.close()
        with pytest.raises(InfrastructureFailure, match="the environment was closed during a call"):
            await step

    run_in_virtual_time(close_in_mid_step())
    assert env.env.closed == 1


def test_held_env_passes_the_cancellation_of_its_caller_on() -> None:
    async def cancel() -> None:
        stopped = asyncio.Event()

        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        env = held(wait)
        step = asyncio.ensure_future(env.step(ACTION))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        step.cancel()
        await asyncio.wait({step})
        assert step.cancelled() and stopped.is_set()
        assert (await env.start())[0].messages  # it goes on

    asyncio.run(cancel())
