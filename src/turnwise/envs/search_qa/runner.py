"""Runs the episodes of search environments: they hear what their agents are shown."""

from dataclasses import replace

from turnwise.core.messages import Message
from turnwise.core.protocols import StepResult
from turnwise.envs.tool_env import ToolEnvRunner


class SearchRunner(ToolEnvRunner):
    """The tool is shared and its answers are kept, so it cannot tell the environment what it was asked."""

    async def step(self, action: Message) -> StepResult:
        result = await super().step(action)
        told = [message.content for message in result.messages if message.role == "tool"]
        calls = result.info.get("calls", [])
        found = self.tool_env.hear([text for text, call in zip(told, calls, strict=True) if not call["failed"]])
        return replace(result, reward=result.reward + self.tool_env.params.find_reward * found) if found else result
