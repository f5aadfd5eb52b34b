"""Contract tests of the protocols, for a user's own environment, engine, learner, reward or tool.

    from turnwise.testing import check_env

    def test_coins():
        check_env(lambda: Coins(Task(env="coins", seed=0), random.Random(0)), replies=["heads", "tails"])

Each function raises AssertionError with a sentence that says what the protocol asks for. They need no test library, and
the tests of turnwise run them over its own implementations.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.core.errors import InfrastructureFailure
from turnwise.core.messages import Message, assistant
from turnwise.core.protocols import (
    Completion,
    Engine,
    EngineStats,
    Env,
    GroupReward,
    Observation,
    Policy,
    Reward,
    RewardResult,
    Sampling,
    StepResult,
    WeightSource,
)
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Group, Stop, Trajectory
from turnwise.tools.tool import Tool, ToolError, ToolResult

if TYPE_CHECKING:  # environments and tools are checked without torch
    from torch import Tensor

    from turnwise.core.learner import Learner, Needs, StepSettings
    from turnwise.core.samples import Batch, TrainBatch

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
LEARNER_TOLERANCE = 1e-6
"""Difference of weights after equal steps: passes over the same batches may round differently."""


def check_env(make: Callable[[], Env], replies: Sequence[str]) -> None:
    """Check an `Env`. `make` returns a new environment of the same task and randomness on every call.

    `replies` are played until the episode is over.
    """
    asyncio.run(_check_env(make, [assistant(reply) for reply in replies]))


async def _check_env(make: Callable[[], Env], replies: Sequence[Message]) -> None:
    first = await _play(make(), replies)
    _expect(first == await _play(make(), replies), "equal tasks, randomness and replies give equal episodes")
    one, two = make(), make()
    _expect(await one.start() == await two.start(), "equal tasks and randomness give equal starts")
    for reply in replies[:1]:  # a step of one environment must not be felt by the other
        _expect(await one.step(reply) == await two.step(reply), "an environment keeps no state outside of itself")
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
    _expect(isinstance(start, Observation), f"start returns an Observation, not {type(start).__name__}")
    _check_messages(start.messages)
    _expect(len(start.messages) > 0, "the observation has at least one message")
    names = [tool.name for tool in start.tools]
    _expect(len(set(names)) == len(names), f"names of tools are unique: {', '.join(names)}")


def _check_result(result: StepResult) -> None:
    _expect(isinstance(result, StepResult), f"step returns a StepResult, not {type(result).__name__}")
    _check_messages(result.messages)
    _expect(_is_number(result.reward), f"the reward is a finite number, not {result.reward!r}")
    _expect(result.over or not result.success, "only the result that ends the episode is a success")
    _expect(result.over or len(result.messages) > 0, "a result that goes on has a message for the agent")
    parts = result.info.get("rewards", {})
    _expect(all(map(_is_number, parts.values())), f"components of the reward are finite numbers: {dict(parts)}")


def _check_messages(messages: Sequence[Message]) -> None:
    _expect(all(isinstance(message, Message) for message in messages), "messages are tw.Message objects")
    _expect(all(message.role != "assistant" for message in messages), "only the agent writes assistant messages")


def check_policy(make: Callable[[], Policy], prompt: Sequence[int], reply: Sequence[int]) -> None:
    """Check a `Policy` and its sessions. `prompt` and `reply`: ids of a first and a second message to the model."""
    asyncio.run(_check_policy(make(), list(prompt), list(reply)))


async def _check_policy(policy: Policy, prompt: list[int], reply: list[int]) -> None:
    greedy, sampled = Sampling(max_tokens=8, temperature=0.0), Sampling(max_tokens=8, temperature=0.7)
    async with policy.open(_key(0)) as session:
        before = session.sampling_s
        first = await session.generate(prompt, greedy)
        _check_completion(first, greedy)
        second = await session.generate(reply, greedy)
        _check_completion(second, greedy)
        _expect(session.sampling_s >= before >= 0, "sampling_s counts up from 0")
        again = await session.generate(prompt, greedy, restart=True)
        _expect(again.ids == first.ids, "restart drops the context")
    async with policy.open(_key(0)) as session:
        whole = await session.generate([*prompt, *first.ids, *reply], greedy)
        _expect(whole.ids == second.ids, "sampled tokens join the context, before the ids of the next call")
    alone = await _sample(policy, 1, prompt, sampled)
    _check_completion(alone, sampled)
    together = await asyncio.gather(*(_sample(policy, member, prompt, sampled) for member in range(4)))
    _expect(together[1].ids == alone.ids, "equal keys sample equal tokens, whatever else is sampled")
    short = await _sample(policy, 0, prompt, Sampling(max_tokens=1))
    _expect(len(short.ids) <= 1, "max_tokens is the most that is sampled")


async def _sample(policy: Policy, member: int, prompt: Sequence[int], sampling: Sampling) -> Completion:
    async with policy.open(_key(member)) as session:
        return await session.generate(prompt, sampling)


def _check_completion(completion: Completion, sampling: Sampling) -> None:
    count = len(completion.ids)
    _expect(count <= sampling.max_tokens, "max_tokens is the most that is sampled")
    _expect(len(completion.logprobs) == count, "each sampled token has a log-probability")
    _expect(all(value <= 1e-4 for value in completion.logprobs), "log-probabilities are at most 0")
    _expect(all(map(math.isfinite, completion.logprobs)), "log-probabilities are finite")
    _expect(len(completion.policy_versions) in (0, count), "policy_versions has an entry per token, or none")
    _expect(completion.temperature == (sampling.temperature or 1.0), "temperature is that of the log-probabilities")
    _expect(isinstance(completion.stop, Stop), "stop says why the turn ended")
    _expect(completion.stop is not Stop.LENGTH or count == sampling.max_tokens, "a turn stops early for a reason")


def check_engine(
    make: Callable[[], Engine],
    prompt: Sequence[int],
    reply: Sequence[int],
    *,
    weights: WeightSource,
    others: WeightSource,
) -> None:
    """Check an `Engine`: a policy with weights. It is built with `weights`; `others` differ from them."""
    check_policy(make, prompt, reply)
    asyncio.run(_check_engine(make(), list(prompt), weights, others))


async def _check_engine(engine: Engine, prompt: list[int], weights: WeightSource, others: WeightSource) -> None:
    sampling = Sampling(max_tokens=8)
    built = await _sample(engine, 0, prompt, sampling)
    _expect(set(built.policy_versions) <= {0}, "tokens have version 0 before anything is published")
    await engine.publish(1, others)
    changed = await _sample(engine, 0, prompt, sampling)
    _expect(set(changed.policy_versions) == {1}, "tokens carry the version that was published last")
    _expect(changed.logprobs != built.logprobs, "publish changes the weights that sample")
    await engine.sleep()
    slept = await _sample(engine, 0, prompt, sampling)
    _expect(slept.ids == changed.ids, "an engine samples after sleep as before")
    await engine.publish(2, weights)
    back = await _sample(engine, 0, prompt, sampling)
    _expect(back.ids == built.ids, "equal weights and keys sample equal tokens")
    stats = engine.stats()
    _expect(isinstance(stats, EngineStats), f"stats returns EngineStats, not {type(stats).__name__}")
    _expect(all(count >= 0 for count in stats.counts.values()), "counts are totals")


def check_learner(
    make: "Callable[[], Learner]",
    batches: "Sequence[Batch]",
    train_batches: "Sequence[TrainBatch]",
    *,
    needs: "Needs",
    settings: "StepSettings",
    folder: Path,
) -> None:
    """Check a `Learner`. `make` returns learners of equal weights; `needs` are scores that it can compute.

    `folder`: an empty one, for its state.
    """
    learner = make()
    learner.begin_step(settings)
    before = _copy_weights(learner)
    _check_scores(learner, batches, needs)
    _expect(learner.gradient_norm(train_batches, "task") >= 0, "a norm is at least 0")
    metrics = learner.forward_backward(train_batches)
    _expect(len(metrics) == len(train_batches), "forward_backward returns metrics for each batch")
    _expect(all("tokens" in row for row in metrics), "the metrics of a batch have its number of tokens")
    _expect(_difference(before, _copy_weights(learner)) == 0, "only step changes the weights")
    taken = learner.step()
    _expect(all(map(_is_number, taken.values())), "the metrics of a step are finite numbers")
    after = _copy_weights(learner)
    _expect(_difference(before, after) > 0, "step changes the weights")
    learner.check_finite("after a step")
    learner.save_state(folder)
    resumed = make()
    resumed.load_weights(_Weights(after))
    resumed.load_state(folder, skipped_steps=learner.skipped_steps)
    _expect(_difference(after, _copy_weights(resumed)) == 0, "load_weights copies all weights")
    for each in (learner, resumed):
        each.begin_step(settings)
        each.forward_backward(train_batches)
        each.step()
    difference = _difference(_copy_weights(learner), _copy_weights(resumed))
    _expect(difference <= LEARNER_TOLERANCE, f"a resumed learner takes the same step; weights differ by {difference:g}")


def _check_scores(learner: "Learner", batches: "Sequence[Batch]", needs: "Needs") -> None:
    scores = learner.score(batches, needs)
    _expect(len(scores) == len(batches), "score returns scores for each batch")
    for batch, row in zip(batches, scores, strict=True):
        for name in ("logprobs", "entropy", "values", "ref_logprobs"):
            values = getattr(row, name)
            _expect((values is not None) == getattr(needs, name), f"{name} is returned if it is requested, else None")
            _expect(values is None or values.shape == batch.targets.shape, f"{name} has a value per sampled token")


class _Weights:
    def __init__(self, parameters: "Mapping[str, Tensor]") -> None:
        self._parameters = parameters

    def named_parameters(self) -> "list[tuple[str, Tensor]]":
        return list(self._parameters.items())


def _copy_weights(learner: "Learner") -> "dict[str, Tensor]":
    return {name: parameter.detach().clone() for name, parameter in learner.weights().named_parameters()}


def _difference(one: "Mapping[str, Tensor]", other: "Mapping[str, Tensor]") -> float:
    _expect(one.keys() == other.keys(), "weights keep their names")
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def check_reward(reward: Reward, trajectory: Trajectory) -> None:
    """Check a `Reward` on an episode."""
    _check_rewards(_run(reward(trajectory)), trajectory)


def check_group_reward(reward: GroupReward, group: Group) -> None:
    """Check a `GroupReward` on a group of episodes."""
    results = _run(reward(group))
    _expect(len(results) == len(group.trajectories), "a group reward returns one result per member")
    for result, trajectory in zip(results, group.trajectories, strict=True):
        if not isinstance(result, InfrastructureFailure):
            _check_rewards(result, trajectory)


def _check_rewards(result: RewardResult, trajectory: Trajectory) -> None:
    _expect(isinstance(result, RewardResult), f"a reward returns a RewardResult, not {type(result).__name__}")
    _expect(len(result.turn_rewards) == len(trajectory.turns), "a reward returns one value per turn")
    _expect(all(map(_is_number, result.turn_rewards)), f"rewards are finite numbers: {result.turn_rewards}")


def check_tool(tool: Tool, arguments: Mapping[str, Any], *, refused: Sequence[Mapping[str, Any]] = ()) -> None:
    """Check a `Tool` with arguments that it accepts. `refused`: arguments that are mistakes of the agent."""
    spec = tool.spec
    _expect(spec.name.isidentifier() or spec.name.replace("-", "_").isidentifier(), f"{spec.name!r} can be called")
    _expect(spec.parameters.get("type") == "object", "the schema of the arguments is that of an object")
    json.dumps(spec.parameters)
    for mistake in refused:
        try:
            tool.check(mistake)
        except ToolError:
            continue
        raise AssertionError(f"check raises ToolError for {dict(mistake)}")
    asyncio.run(_call_tool(tool, tool.check(arguments)))


async def _call_tool(tool: Tool, arguments: Mapping[str, Any]) -> None:
    async with tool.open(0, None) as one, tool.open(0, None) as two:
        results = [await one.call(arguments), await two.call(arguments)]
    for result in results:
        _expect(isinstance(result, ToolResult), f"call returns a ToolResult, not {type(result).__name__}")
        _expect(_is_number(result.reward), f"the reward of a call is a finite number, not {result.reward!r}")
        _expect(result.over or not result.success, "only a call that ends the episode is a success")
    _expect(not tool.rules.pure or results[0] == results[1], "a pure tool returns equal results for equal arguments")


def _key(member: int) -> EpisodeKey:
    return EpisodeKey(run_seed=0, round=0, task=Task(env="test", seed=0), member=member)


def _run(awaitable: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await awaitable

    return asyncio.run(wait())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _expect(holds: bool, rule: str) -> None:
    if not holds:
        raise AssertionError(rule)
