"""The agents that `agent` may choose."""

from collections.abc import Mapping
from typing import Any

from turnwise.envs.agent.harness import ClaudeCode, Codex, Harness, MiniSwe, OpenCode
from turnwise.envs.agent.settings import AgentSettings, CallersAgent, CommandSettings, FunctionSettings, StartedAgent
from turnwise.settings.choice import choices

AGENTS: dict[str, type[AgentSettings]] = choices(
    CallersAgent, CommandSettings, FunctionSettings, MiniSwe, ClaudeCode, Codex, OpenCode
)


def starts_agent(agent: Any) -> bool:
    """Return whether a value of `agent`, checked or not, names an agent that the run starts on tasks of a file."""
    if not isinstance(agent, Mapping):
        return isinstance(agent, StartedAgent)
    return any(agent.get(chosen.implied_by) for chosen in AGENTS.values() if chosen.implied_by)


def is_command_line_agent(name: str) -> bool:
    return name in AGENTS and issubclass(AGENTS[name], Harness)
