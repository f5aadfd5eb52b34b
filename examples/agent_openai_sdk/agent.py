"""An agent of the OpenAI Agents SDK with two tools.

pip install openai-agents
turnwise train examples/agent_openai_sdk/agent.toml
"""

from typing import Any

from agents import Agent, AgentsException, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI


@function_tool
def add(a: int, b: int) -> int:
    """Return a + b."""
    return a + b


@function_tool
def multiply(a: int, b: int) -> int:
    """Return a * b."""
    return a * b


async def solve(client: AsyncOpenAI, task: dict[str, Any]) -> float:
    """Return 1.0 if the last line of the answer is right."""
    agent = Agent(
        name="calculator",
        instructions="Use the tools to compute. End with the number alone on the last line.",
        tools=[add, multiply],
        model=OpenAIChatCompletionsModel(model="policy", openai_client=client),
    )
    try:
        result = await Runner.run(agent, task["question"], max_turns=6, run_config=RunConfig(tracing_disabled=True))
    except AgentsException:  # too many turns, or a tool that does not exist: the model's own mistakes
        return 0.0
    lines = str(result.final_output).split()
    return float(bool(lines) and lines[-1] == str(task["answer"]))
