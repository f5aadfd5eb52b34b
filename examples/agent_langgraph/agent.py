"""A LangGraph agent with two tools: a graph of the model and its tools.

pip install langgraph langchain-openai
turnwise train examples/agent_langgraph/agent.toml
"""

from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import AsyncOpenAI

MAX_STEPS = 12


@tool
def add(a: int, b: int) -> int:
    """Return a + b."""
    return a + b


@tool
def multiply(a: int, b: int) -> int:
    """Return a * b."""
    return a * b


def build_graph(client: AsyncOpenAI) -> Any:
    """Return a graph whose model is the one that the client reaches."""
    model = ChatOpenAI(model="policy", base_url=str(client.base_url), api_key=client.api_key).bind_tools(
        [add, multiply]
    )

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode([add, multiply]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


async def solve(client: AsyncOpenAI, task: dict[str, Any]) -> float:
    """Return 1.0 if the last line of the answer is right."""
    question = f"{task['question']} Use the tools. End with the number alone on the last line."
    try:
        state = await build_graph(client).ainvoke(
            {"messages": [("user", question)]}, config={"recursion_limit": MAX_STEPS}
        )
    except GraphRecursionError:  # the model called tools until the limit
        return 0.0
    lines = str(state["messages"][-1].content).split()
    return float(bool(lines) and lines[-1] == str(task["answer"]))
