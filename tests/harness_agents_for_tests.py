"""Command-line agents on Harbor tasks, with a model whose replies a test decides."""

import asyncio
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from episodes_for_tests import end_id, limits, renderer, spoken
from gateway_for_tests import RecordingPolicy, full_contexts, open_gateway
from turnwise.core.task import EpisodeKey, Task
from turnwise.core.trajectory import Trajectory
from turnwise.engine.scripted import ScriptedEngine
from turnwise.envs.adapters.harbor.env import Harbor
from turnwise.envs.agent.harness import Harness
from turnwise.gateway.agent_episodes import AgentCollector, RecordedEpisodes
from turnwise.gateway.harbor_agent import build_harbor_agent, find_harbor_episode
from turnwise.run.agents import sockets_folder

Reply = Callable[[str, int], str]
"""Reply to (all text so far, number of the call in its context)."""
MAX_TOKENS = 1_000_000
"""Tokens of a context: agents have long instructions, and tiny's tokenizer knows few words."""


def call(name: str, **arguments: Any) -> str:
    """Return a tool call as no serialiser would write it."""
    text = json.dumps(arguments, indent=1, ensure_ascii=False)
    return f'I go on.\n<tool_call>\n{{"arguments": {text},   "name": "{name}"}}\n</tool_call>'


def play_harbor_task(
    harness: Harness,
    tasks: Path,
    reply: Reply,
    *,
    max_tokens: int = MAX_TOKENS,
    max_new_tokens: int = 4096,
    timeout_s: float = 240.0,
) -> tuple[Trajectory, RecordingPolicy]:
    """Play the first training task with an agent, whose model is `reply`."""

    def script(key: EpisodeKey, turn: int, ids: list[int]) -> list[int]:
        return spoken(reply(renderer().decode(ids), turn))

    policy = RecordingPolicy(ScriptedEngine(script, [end_id()]))
    params = Harbor.Params(folder=str(tasks), memory_mb=4096, disk_mb=512).model_dump()
    key = EpisodeKey(run_seed=0, round=0, task=Task(env="harbor", seed=0, params=params))

    async def run() -> Trajectory:
        most = limits(max_new_tokens=max_new_tokens, max_tokens=max_tokens)
        async with open_gateway(policy, limits=most, sockets=sockets_folder()) as gateway:
            collector = AgentCollector(
                host=RecordedEpisodes(gateway=gateway, limits=most, settings=harness),
                agent=build_harbor_agent(
                    harness, sockets_folder(), max_tokens=max_tokens, max_new_tokens=max_new_tokens, timeout_s=timeout_s
                ),
                find_task=find_harbor_episode,
                timeout_s=None,
                in_flight=1,
                attempts=1,
                run_seed=0,
            )
            (trajectory,) = await collector.episodes([key])
            return trajectory

    return asyncio.run(run()), policy


def assert_exact(trajectory: Trajectory, policy: RecordingPolicy) -> None:
    """Each recorded turn has the ids that the model was given and sampled, and none is missing."""
    captured = [(context, turn.action_ids) for context, turn in full_contexts(trajectory.turns)]
    assert sorted(captured) == sorted((context, completion.ids) for context, completion in policy.samples)


def bash(command: str) -> str:
    return f"bash -c {shlex.quote(command)}"
