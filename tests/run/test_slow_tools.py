"""Tools that take their time, with the engine and the settings that `turnwise train` has by default."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from turnwise.config.load import build
from turnwise.core.messages import Message
from turnwise.core.protocols import Env, StepResult
from turnwise.core.task import Task
from turnwise.core.trajectory import Status
from turnwise.envs.registry import spec_of
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.text_env import Outcome, TextEnv, lost
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import load_model
from turnwise.rollout.collect import CollectedGroups
from turnwise.run.build import build_policy_stack
from turnwise.run.environment_mix import build_environment_mix, build_task_source

MEMBERS, TURNS = 6, 3
HANG_S = 120


class Errands(TextEnv):
    """Say anything."""

    max_turns = TURNS

    def reset(self, rng: Any) -> str:
        return "Go."

    def step(self, action: str) -> Outcome:
        return lost()


class Errand(TextEnvRunner):
    """Every turn waits for `tool`, where there is one."""

    tool: Callable[[], Awaitable[Any]] | None = None

    async def step(self, action: Message) -> StepResult:
        if self.tool is not None:
            await self.tool()
        return await super().step(action)


def collect(tool: Callable[[], Awaitable[Any]], done: Callable[[int], None], **settings: Any) -> CollectedGroups:
    """Six members, the first of which has a tool; `done` gets how many have ended."""
    given = {"rollout.max_new_tokens": 8, **{name.replace("__", "."): value for name, value in settings.items()}}
    config = build({"env": {"kind": "errands"}}, list(given.items()))
    worlds = build_environment_mix(config.env, config.agent, spec_of(Errands))
    collector = build_policy_stack(config, worlds, load_model("tiny", attn_implementation=ATTENTION)).collector

    def make(task: Task, member: int, attempt: int) -> Env:
        made = worlds.make(task, member, attempt)
        errand = Errand(made.env, made._start_rng)
        errand.tool = tool if member == 0 else None
        return errand

    async def scenario() -> CollectedGroups:
        tasks = build_task_source(config, worlds).draw(0, 1)
        async with asyncio.timeout(HANG_S):
            return await replace(collector, make_env=make).collect(
                tasks, group_size=MEMBERS, round=0, progress=lambda count, total: done(count)
            )

    return asyncio.run(scenario())


def test_quick_episodes_end_before_a_slow_tool_answers() -> None:
    """The tool answers only when the five others have ended."""
    ended: list[int] = []
    gate: list[asyncio.Event] = []

    async def slow() -> None:
        gate.append(asyncio.Event())
        if len(ended) < MEMBERS - 1:
            await gate[-1].wait()

    def note(count: int) -> None:
        ended.append(count)
        if count == MEMBERS - 1:
            gate[-1].set()

    (group,) = collect(slow, note).groups
    assert [each.status for each in group.trajectories] == [Status.TRUNCATED_TURNS] * MEMBERS
    assert len(gate) == TURNS


def test_hanging_tool_does_not_truncate_other_episodes() -> None:
    """It is given up after `rollout.timeout_s`, as infrastructure; the others had nothing to do with it."""

    async def hang() -> None:
        await asyncio.Event().wait()

    collected = collect(hang, lambda count: None, rollout__timeout_s=2.0, rollout__attempts=1)
    (group,) = collected.groups
    assert [each.member for each in group.trajectories] == [1, 2, 3, 4, 5]
    assert {each.status for each in group.trajectories} == {Status.TRUNCATED_TURNS}
    assert collected.counts == {"infra_errors": 1, "dropped": 1}
