"""A LangGraph agent that answers customers: a graph of the model and three tools; it learns which tool has the answer.

pip install langgraph langchain-openai
turnwise train examples/agent_langgraph/agent.toml
"""

import random
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import AsyncOpenAI


@tool
def search() -> str:
    """Return whether the shop has the product."""
    return "3 left"


@tool
def buy() -> str:
    """Order the product."""
    return "ordered"


@tool
def place() -> str:
    """Return where the order is."""
    return "in the post"


TOOLS = [search, buy, place]


def build_graph(client: AsyncOpenAI) -> Any:
    """Return a graph whose model is the one that the client reaches. It ends after a tool call, or without one."""
    model = ChatOpenAI(model="policy", base_url=str(client.base_url), api_key=client.api_key).bind_tools(TOOLS)

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode(TOOLS))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", END)
    return graph.compile()


async def answer(client: AsyncOpenAI, task: dict[str, Any]) -> float:
    """Return 1.0 if the answer, which is the tool's result, is right."""
    question = f"Call the tool that answers the question. {task['question']}"
    state = await build_graph(client).ainvoke({"messages": [("user", question)]})
    return float(state["messages"][-1].content == task["answer"])


def random_reply(text: str, rng: random.Random) -> str:
    """Draw a reply of the right form. `tiny` knows no words, so its warm-up learns to call any of the tools first."""
    name = rng.choice([each.name for each in TOOLS])
    return f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
