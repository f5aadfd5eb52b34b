"""Contract tests of environments, rewards and tools. They need no torch."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from turnwise.core.errors import InfrastructureFailure
from turnwise.core.messages import Message, assistant
from turnwise.core.protocols import Env, GroupReward, Observation, Reward, RewardResult, StepResult
from turnwise.core.trajectory import Group, Trajectory
from turnwise.testing.rules import expect, is_number
from turnwise.tools.tool import Tool, ToolError, ToolResult

UNREADABLE = (
    "",
    "?",
    "<answer>",
    "<answer></answer>",
    "<tool_call>{",
    "no such action " * 9,
    "\U0001f3b2\n\t</think>",
)
"""Replies that most environments cannot read. Models write them, so they are answered and never raise."""


def check_env(make: Callable[[], Env], replies: Sequence[str]) -> None:
    """Check an `Env`. `make` returns a new environment of the same task and randomness on every call.

    `replies` are played until the episode is over.
    """
    asyncio.run(_check_env(make, [assistant(reply) for reply in replies]))


async def _check_env(make: Callable[[], Env], replies: Sequence[Message]) -> None:
    first = await _play(make(), replies)
    expect(first == await _play(make(), replies), "equal tasks, randomness and replies give equal episodes")
    one, two = make(), make()
    expect(await one.start() == await two.start(), "equal tasks and randomness give equal starts")
    for reply in replies[:1]:  # a step of one environment must not be felt by the other
        expect(await one.step(reply) == await two.step(reply), "an environment keeps no state outside of itself")
    await one.close()
    await two.close()
    unused = make()
    await unused.start()
    await unused.close()
    for text in UNREADABLE:
        await _play(make(), [assistant(text)])


async def _play(env: Env, replies: Sequence[Message]) -> list[Observation | StepResult]:
    """Play one episode and check all that the environment returns."""
    start = await env.start()
    _check_observation(start)
    seen: list[Observation | StepResult] = [start]
    for reply in replies:
        result = await env.step(reply)
        _check_result(result)
        seen.append(result)
        if result.over:
            break
    await env.close()
    return seen


def _check_observation(start: Observation) -> None:
    expect(isinstance(start, Observation), f"start returns an Observation, not {type(start).__name__}")
    _check_messages(start.messages)
    expect(len(start.messages) > 0, "the observation has at least one message")
    names = [tool.name for tool in start.tools]
    expect(len(set(names)) == len(names), f"names of tools are unique: {', '.join(names)}")


def _check_result(result: StepResult) -> None:
    expect(isinstance(result, StepResult), f"step returns a StepResult, not {type(result).__name__}")
    _check_messages(result.messages)
    expect(is_number(result.reward), f"the reward is a finite number, not {result.reward!r}")
    expect(result.over or not result.success, "only the result that ends the episode is a success")
    expect(result.over or len(result.messages) > 0, "a result that goes on has a message for the agent")
    parts = result.info.get("rewards", {})
    expect(all(map(is_number, parts.values())), f"components of the reward are finite numbers: {dict(parts)}")


def _check_messages(messages: Sequence[Message]) -> None:
    expect(all(isinstance(message, Message) for message in messages), "messages are tw.Message objects")
    expect(all(message.role != "assistant" for message in messages), "only the agent writes assistant messages")


def check_reward(reward: Reward, trajectory: Trajectory) -> None:
    """Check a `Reward` on an episode."""
    _check_rewards(_run(reward(trajectory)), trajectory)


def check_group_reward(reward: GroupReward, group: Group) -> None:
    """Check a `GroupReward` on a group of episodes."""
    results = _run(reward(group))
    expect(len(results) == len(group.trajectories), "a group reward returns one result per member")
    for result, trajectory in zip(results, group.trajectories, strict=True):
        if not isinstance(result, InfrastructureFailure):
            _check_rewards(result, trajectory)


def _check_rewards(result: RewardResult, trajectory: Trajectory) -> None:
    expect(isinstance(result, RewardResult), f"a reward returns a RewardResult, not {type(result).__name__}")
    expect(len(result.turn_rewards) == len(trajectory.turns), "a reward returns one value per turn")
    expect(all(map(is_number, result.turn_rewards)), f"rewards are finite numbers: {result.turn_rewards}")


def check_tool(tool: Tool, arguments: Mapping[str, Any], *, refused: Sequence[Mapping[str, Any]] = ()) -> None:
    """Check a `Tool` with arguments that it accepts. `refused`: arguments that are mistakes of the agent."""
    asyncio.run(check_open_tool(tool, arguments, refused=refused))


async def check_open_tool(
    tool: Tool, arguments: Mapping[str, Any], *, refused: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Check a tool of a `ToolSource`, such as an MCP server, in the event loop that opened the source."""
    spec = tool.spec
    expect(spec.name.isidentifier() or spec.name.replace("-", "_").isidentifier(), f"{spec.name!r} can be called")
    expect(spec.parameters.get("type") == "object", "the schema of the arguments is that of an object")
    json.dumps(spec.parameters)
    for mistake in refused:
        try:
            tool.check(mistake)
        except ToolError:
            continue
        raise AssertionError(f"check raises ToolError for {dict(mistake)}")
    await _call_tool(tool, tool.check(arguments))


async def _call_tool(tool: Tool, arguments: Mapping[str, Any]) -> None:
    async with tool.open(0, None) as one, tool.open(0, None) as two:
        results = [await one.call(arguments), await two.call(arguments)]
    for result in results:
        expect(isinstance(result, ToolResult), f"call returns a ToolResult, not {type(result).__name__}")
        expect(is_number(result.reward), f"the reward of a call is a finite number, not {result.reward!r}")
        expect(result.over or not result.success, "only a call that ends the episode is a success")
    expect(not tool.rules.pure or results[0] == results[1], "a pure tool returns equal results for equal arguments")


def _run(awaitable: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await awaitable

    return asyncio.run(wait())
