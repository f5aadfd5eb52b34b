"""An agent of the OpenAI Agents SDK that answers customers: it learns which of three tools has the answer.

pip install openai-agents
turnwise train examples/agent_openai_sdk/agent.toml
"""

import random
from typing import Any

from agents import Agent, AgentsException, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI


@function_tool
def search() -> str:
    """Return whether the shop has the product."""
    return "3 left"


@function_tool
def buy() -> str:
    """Order the product."""
    return "ordered"


@function_tool
def place() -> str:
    """Return where the order is."""
    return "in the post"


async def answer(client: AsyncOpenAI, task: dict[str, Any]) -> float:
    """Return 1.0 if the answer, which is the first tool's result, is right."""
    agent = Agent(
        name="shop",
        instructions="Call the tool that answers the question.",
        tools=[search, buy, place],
        tool_use_behavior="stop_on_first_tool",
        model=OpenAIChatCompletionsModel(model="policy", openai_client=client),
    )
    try:
        result = await Runner.run(agent, task["question"], max_turns=2, run_config=RunConfig(tracing_disabled=True))
    except AgentsException:  # too many turns, or a tool that does not exist: the model's own mistakes
        return 0.0
    return float(result.final_output == task["answer"])


def random_reply(text: str, rng: random.Random) -> str:
    """Draw a reply of the right form. `tiny` knows no words, so its warm-up learns to call any of the tools first."""
    tool = rng.choice(["search", "buy", "place"])
    return f'<tool_call>{{"name": "{tool}", "arguments": {{}}}}</tool_call>'
