"""An environment of turnwise as a taskset of verifiers, from 0.4 on, with a harness that plays it in this process.

Imported by the packages that `turnwise envs export --to verifiers` writes.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import httpx
import verifiers.v1 as vf
from pydantic import Field

from turnwise.core.messages import assistant
from turnwise.core.task import Split, Task
from turnwise.engine.openai.messages import message_json, tools_json
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for
from turnwise.tools.call_formats import format_call


class ExportedData(vf.TaskData):
    """A task: its index in a split."""

    split: Split
    index: int
    params: dict[str, Any]


class ExportedState(vf.State):
    """Result of the episode."""

    reward: float | None = None
    success: bool = False


class ExportedTask(vf.Task[ExportedData, ExportedState]):
    """The reward is the sum of the environment's rewards."""

    @vf.reward
    async def reward(self, trace: Any) -> Any:
        return trace.state.reward

    @vf.metric
    async def success(self, trace: Any) -> float:
        return float(trace.state.success)


class ExportedConfig(vf.TasksetConfig):
    split: Split = "test"
    """Split whose tasks are loaded: train, validation or test."""
    num_tasks: int = 100
    """Number of tasks, at most."""
    params: dict[str, Any] = Field({})
    """Further parameters of the environment."""


class ExportedTaskset(vf.Taskset[ExportedTask, ExportedConfig]):
    """Tasks of one split."""

    environment: ClassVar[str]
    params: ClassVar[Mapping[str, Any]] = {}

    def load(self) -> Iterator[ExportedTask]:
        spec, config = load_spec(self.environment), self.config
        params = spec.check_params({**self.params, **config.params})
        spec.check_resources(params)
        size = spec.split_sizes(params).get(config.split, SEEDS_PER_SPLIT)
        for index in range(min(size, config.num_tasks)):
            data = ExportedData(
                prompt=f"{config.split} task {index} of {spec.name}", split=config.split, index=index, params=params
            )
            yield ExportedTask(data, config.task)


class ExportedHarness(vf.Harness[vf.HarnessConfig]):
    """Play an episode: the environment's messages to the model, its replies to the environment."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    environment: ClassVar[str]

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: ExportedData,
    ) -> Any:
        spec = load_spec(self.environment)
        task = Task(env=spec.name, seed=seed_for(data.split, data.index), split=data.split, params=data.params)
        episode, reward = spec.make(task), 0.0
        try:
            opening = await episode.start()
            messages = [message_json(message) for message in opening.messages]
            body = {"model": ctx.model, "messages": messages} | (
                {"tools": tools_json(opening.tools)} if opening.tools else {}
            )
            headers = {"Authorization": f"Bearer {secret}"}
            async with httpx.AsyncClient(headers=headers, timeout=None, trust_env=False) as http:
                while True:
                    answer = await http.post(f"{endpoint}/chat/completions", json=body)
                    if trace.stop_condition is not None:  # a limit refuses the call
                        break
                    if answer.status_code != 200:
                        raise vf.HarnessError(f"the call of the model failed: {answer.text[:500]}")
                    reply = answer.json()["choices"][0]["message"]
                    result = await episode.step(assistant(reply_text(reply, data.params.get("style", "hermes"))))
                    reward += result.reward
                    trace.state.success = result.success
                    messages += [reply, *_answers(reply, [message_json(message) for message in result.messages])]
                    if result.over:
                        break
        finally:
            await episode.close()
        trace.state.reward = reward
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class ExportedEnvConfig(vf.EnvConfig):
    """The harness is a loop in this process, which needs no sandbox."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class ExportedEnv(vf.Env[ExportedEnvConfig]):
    """One agent plays one task."""

    async def run(self, task: Any, agents: Any) -> None:
        await agents.agent.run(task)


def reply_text(reply: Mapping[str, Any], style: str) -> str:
    """Return a message as the text that a model wrote: endpoints take its calls out of it."""
    calls = [call["function"] for call in reply.get("tool_calls") or ()]
    return (reply.get("content") or "") + "".join(
        format_call(call["name"], _arguments(call["arguments"]), style) for call in calls
    )


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except ValueError:
        return {"arguments": text}
    return arguments if isinstance(arguments, dict) else {"arguments": text}


def _answers(reply: Mapping[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the environment's messages, with the ids of the calls that they answer."""
    ids = iter([call["id"] for call in reply.get("tool_calls") or ()])
    return [
        {**message, "tool_call_id": next(ids, message["tool_call_id"])} if message["role"] == "tool" else message
        for message in messages
    ]
