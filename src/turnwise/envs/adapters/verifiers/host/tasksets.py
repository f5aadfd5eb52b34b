"""Environments of the second generation, from verifiers 0.2 on: a taskset, its rewards on a trace, and a harness.

The default harness is a chat loop in this process: it needs no sandbox, no network and no start of a program.
"""

import itertools
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import ModuleType
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.utils.loaders import default_harness_id, env_config_type

from turnwise.envs.adapters.verifiers.host.episode import Episode, EpisodeFailure, Score
from turnwise.envs.adapters.verifiers.host.locate import LoadFailure

HARNESS = "turnwise_chat"
MAX_TASKS = 100_000
"""Tasks that are read of a taskset, which may be endless."""
LIMITS = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed")
"""Stop conditions that are limits."""


class ChatHarnessConfig(vf.HarnessConfig):
    """The loop has no settings of its own."""

    id: str = HARNESS


class ChatHarness(vf.Harness[ChatHarnessConfig]):
    """Call the model and the tools in turn, until a reply calls none."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system is not None else []
        opening = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt or []
        messages += map(message_to_wire, opening)
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            tools, names, connections = await connect_mcp({"mcpServers": servers}, stack)
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))
            body = {"model": ctx.model, "messages": messages} | ({"tools": tools} if tools else {})
            while True:
                headers = {"Authorization": f"Bearer {secret}"}
                answer = await http.post(f"{endpoint}/chat/completions", headers=headers, json=body)
                if trace.stop_condition is not None:  # a limit or a @stop refuses the call
                    break
                if answer.status_code != 200:
                    raise vf.HarnessError(f"the call of the model failed: {answer.text[:500]}")
                message = answer.json()["choices"][0]["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    break
                messages += [await _run(call, connections, names) for call in message["tool_calls"]]
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


async def _run(call: dict[str, Any], connections: Any, names: Any) -> dict[str, Any]:
    """Return the message with the result of a call; the agent reads errors."""
    name = call["function"]["name"]
    content: Any = f"Error: there is no tool {name}."
    if name in names:
        try:
            content = await call_mcp(connections, names, name, json.loads(call["function"]["arguments"]))
        except ValueError as error:
            content = f"Error: {error}"
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


@asynccontextmanager
async def open_taskset(
    module: ModuleType, args: dict[str, Any], max_turns: int, url: str, episodes: dict[str, Episode]
) -> AsyncIterator["TasksetEnvironment"]:
    """Open an environment with the resources that its episodes share. `url`: where it reaches the model."""
    env = vf.load_environment(_config(module.__name__, args, max_turns))
    async with env.serving():
        yield TasksetEnvironment(env, url, episodes)


class TasksetEnvironment:
    """An environment over a taskset. `episodes` are those that are running, by the id of their trace."""

    def __init__(self, env: Any, url: str, episodes: dict[str, Episode]) -> None:
        self._env, self._episodes = env, episodes
        self.splits: dict[str, Any] = {"train": list(itertools.islice(iter(self._env.taskset), MAX_TASKS))}
        self.kinds: Mapping[str, str] = {"train": "train"}
        client = vf.EvalClientConfig(base_url=url, api_key_var="TURNWISE_SERVER_KEY")
        self._context = vf.ModelContext(model="policy", client=client)

    async def run(self, split: str, index: int, episode: Episode) -> Score:
        def register(trace: Any) -> None:
            self._episodes[trace.id] = episode

        result = await self._env.run_episode(self.splits[split][index], self._context, on_trace=register)
        for error in [*result.errors, *(error for trace in result.traces if not trace.ok for error in trace.errors)]:
            raise EpisodeFailure(f"{error.type}: {error.message}")
        if len(result.traces) != 1:
            raise EpisodeFailure(f"the environment made {len(result.traces)} traces: one is needed")
        trace = result.traces[0]
        return Score(
            reward=trace.reward,
            parts={name: None if reward is None else reward.score for name, reward in trace.rewards.items()},
            truncated=trace.is_timeout or trace.stop_condition in LIMITS,
        )


def _config(taskset: str, args: dict[str, Any], max_turns: int) -> Any:
    """Return the configuration of the environment, with the chat loop where the taskset brings no harness."""
    module: Any = ModuleType(HARNESS)
    module.ChatHarness, module.__all__ = ChatHarness, ["ChatHarness"]
    sys.modules[HARNESS] = module
    config = env_config_type(taskset)
    agents = list(agent_config_fields(config.model_validate({"taskset": {"id": taskset}})))
    if len(agents) != 1:
        raise LoadFailure(f"{taskset} has the agents {', '.join(agents)}: environments with one agent are supported")
    agent: dict[str, Any] = {"runtime": {"type": "subprocess"}, "max_turns": max_turns}
    if default_harness_id(taskset) != taskset:
        agent["harness"] = {"id": HARNESS}
    return config.model_validate({"taskset": {"id": taskset, **args}, agents[0]: agent})
