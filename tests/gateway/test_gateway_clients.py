"""Agents of well-known SDKs, unchanged, against the gateway: the captured ids are the sampled ones."""

import asyncio
import importlib
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NoReturn

import anthropic
import httpx2
import openai
import pytest
from dialect_cases import ANTHROPIC, CHAT, RESPONSES, bodies, without_image
from hypothesis import given, settings

from episodes_for_tests import end_id, limits, spoken
from gateway_for_tests import RecordingPolicy, episode_key, open_gateway
from turnwise.core.trajectory import Turn
from turnwise.engine.scripted import ScriptedEngine
from turnwise.gateway.capture import GatewayEpisode

QUESTION = "What is 2 + 3 + 7?"
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
READ: Any = {"type": "function", "name": "read", "description": "Read a file."}
CALLS = (
    '<think>first two</think>I add.\n<tool_call>\n{"arguments": {"b":3,  "a": 2}, "name": "add"}\n</tool_call>',
    '<tool_call>{"name": "add", "arguments": {"a": 5, "b": 7}}</tool_call>'
    '<tool_call>{"name": "add", "arguments": {"a": -1, "b": 1}}</tool_call>',
)
"""Not as a serialiser would write them."""
ANSWER = "<think>done</think>\n\nIt is 12 \N{PARTY POPPER}."
TALK = (*CALLS, ANSWER)


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


@pytest.fixture
def require(optional_part: Callable[[str], NoReturn]) -> Callable[[str], Any]:
    """Import an SDK."""

    def load(module: str) -> Any:
        try:
            return importlib.import_module(module)
        except ImportError:
            optional_part(f"{module} is not installed")

    return load


class Server:
    """A gateway in a thread of its own, for clients that block, with a script of answers per episode."""

    def __init__(self) -> None:
        self.scripts: list[tuple[str, ...]] = []
        self.policy = RecordingPolicy(
            ScriptedEngine(lambda key, turn, ids: spoken(self._next_answer(key.member)), [end_id()])
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        settings = limits(max_new_tokens=1000, max_tokens=100_000)
        self._manager = open_gateway(self.policy, limits=settings, max_sessions=100)
        self.gateway = self.call(self._manager.__aenter__())

    def call(self, coroutine: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await coroutine

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(120)

    def close(self) -> None:
        self.call(self._manager.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self, *answers: str) -> GatewayEpisode:
        """Open an episode in which the policy samples these answers, one per call; the last is repeated."""
        self.scripts.append(answers)
        self.policy.samples.clear()
        return self.call(self.gateway.open_episode(episode_key(member=len(self.scripts) - 1)))

    def _next_answer(self, member: int) -> str:
        answers = self.scripts[member]
        return answers[min(len(self.policy.samples), len(answers) - 1)]

    def turns(self, episode: GatewayEpisode) -> tuple[Turn, ...]:
        """Return the turns of an episode, after checking that they are exactly what was sampled."""
        turns: tuple[Turn, ...] = self.call(_now(episode.turns))
        captured, context = Counter[Any](), list[int]()
        for turn in turns:
            context = [*(context if turn.extends else ()), *turn.context_ids]
            captured[tuple(context), turn.action_ids] += 1
            context += turn.action_ids
        assert captured == Counter((context, completion.ids) for context, completion in self.policy.samples)
        return turns


async def _now(function: Callable[[], Any]) -> Any:
    return function()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def openai_settings(server: Server, episode: GatewayEpisode) -> dict[str, Any]:
    return {"base_url": f"{server.gateway.url}/v1", "api_key": episode.bearer, "max_retries": 0}


def anthropic_settings(server: Server, episode: GatewayEpisode) -> dict[str, Any]:
    return {"base_url": server.gateway.url, "api_key": episode.bearer, "max_retries": 0}


# ---- plain loops around the official clients: sync, async, streaming ----


def chat_stream(client: openai.OpenAI, **body: Any) -> Any:
    with client.chat.completions.stream(**body) as stream:
        return stream.get_final_completion()


def chat_async(client: openai.OpenAI, **body: Any) -> Any:
    async def create() -> Any:
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as other:
            return await other.chat.completions.create(**body)

    return asyncio.run(create())


@pytest.mark.parametrize(
    "create",
    [lambda client, **body: client.chat.completions.create(**body), chat_stream, chat_async],
    ids=["sync", "stream", "async"],
)
def test_openai_chat_loop_is_captured_exactly(server: Server, create: Any) -> None:
    episode = server.open(*TALK)
    client = openai.OpenAI(**openai_settings(server, episode))
    tools = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": ADD}}]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        message = create(client, model="m", messages=messages, tools=tools).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = str(add(**json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert message.content == "It is 12 \N{PARTY POPPER}."
    assert [turn.extends for turn in server.turns(episode)] == [False, True, True]


def call_async(async_class: Any, client: Any, api: str, body: dict[str, Any]) -> Any:
    """Create a response with the SDK's asynchronous client."""

    async def create() -> Any:
        async with async_class(base_url=client.base_url, api_key=client.api_key) as other:
            return await getattr(other, api).create(**body)

    return asyncio.run(create())


def responses_stream(client: openai.OpenAI, **body: Any) -> Any:
    with client.responses.stream(**body) as stream:
        texts = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert texts == final.output_text
    return final


def responses_async(client: openai.OpenAI, **body: Any) -> Any:
    return call_async(openai.AsyncOpenAI, client, "responses", body)


@pytest.mark.parametrize(
    "create",
    [lambda client, **body: client.responses.create(**body), responses_stream, responses_async],
    ids=["sync", "stream", "async"],
)
@pytest.mark.parametrize("stored", [False, True], ids=["whole_input", "previous_response_id"])
def test_openai_responses_loop_is_captured_exactly(server: Server, create: Any, stored: bool) -> None:
    episode = server.open(*TALK)
    client = openai.OpenAI(**openai_settings(server, episode))
    settings: dict[str, Any] = {
        "model": "m",
        "instructions": "Use tools.",
        "tools": [{"type": "function", "name": "add", "description": "Add.", "parameters": ADD, "strict": False}],
    }
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        response = create(client, input=items, **settings)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        results = [str(add(**json.loads(call.arguments))) for call in calls]
        outputs = [
            {"type": "function_call_output", "call_id": call.call_id, "output": result}
            for call, result in zip(calls, results, strict=True)
        ]
        if stored:
            items, settings["previous_response_id"] = outputs, response.id
        else:
            items += [*(item.model_dump(exclude_none=True) for item in response.output), *outputs]
    assert response.output_text == "It is 12 \N{PARTY POPPER}."
    assert response.usage.output_tokens == len(spoken(ANSWER))
    assert [turn.extends for turn in server.turns(episode)] == [False, True, True]


def messages_stream(client: anthropic.Anthropic, **body: Any) -> Any:
    with client.messages.stream(**body) as stream:
        return stream.get_final_message()


def messages_async(client: anthropic.Anthropic, **body: Any) -> Any:
    return call_async(anthropic.AsyncAnthropic, client, "messages", body)


@pytest.mark.parametrize(
    "create",
    [lambda client, **body: client.messages.create(**body), messages_stream, messages_async],
    ids=["sync", "stream", "async"],
)
@pytest.mark.parametrize("thinking", ["disabled", "adaptive"])
def test_anthropic_loop_is_captured_exactly(server: Server, create: Any, thinking: str) -> None:
    episode = server.open(*TALK)
    client = anthropic.Anthropic(**anthropic_settings(server, episode))
    settings: dict[str, Any] = {
        "model": "m",
        "max_tokens": 1000,
        "system": "Use tools.",
        "thinking": {"type": thinking},
        "tools": [{"name": "add", "description": "Add.", "input_schema": ADD}],
    }
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        message = create(client, messages=messages, **settings)
        messages.append({"role": "assistant", "content": message.content})
        if message.stop_reason != "tool_use":
            break
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": str(add(**block.input))}
            for block in message.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    assert message.content[-1].text == "It is 12 \N{PARTY POPPER}."
    assert ("thinking" in [block.type for block in message.content]) == (thinking == "adaptive")
    assert message.usage.output_tokens == len(spoken(ANSWER))
    turns = server.turns(episode)
    assert [turn.extends for turn in turns] == [False, True, True]
    assert message.usage.input_tokens == sum(len(turn.context_ids) for turn in turns) + sum(
        len(turn.action_ids) for turn in turns[:-1]
    )


def test_anthropic_counts_tokens_without_recording(server: Server) -> None:
    episode = server.open("hello")
    client = anthropic.Anthropic(**anthropic_settings(server, episode))
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    counted = client.messages.count_tokens(model="m", messages=messages)
    assert not server.turns(episode)
    assert (
        client.messages.create(model="m", max_tokens=10, messages=messages).usage.input_tokens == counted.input_tokens
    )


# ---- the way Claude Code and Codex speak ----


def test_claude_code_requests_extend_despite_billing_headers(server: Server) -> None:
    """Claude Code streams, marks caches, and hashes each request into its system prompt."""
    episode = server.open(*TALK)
    client = anthropic.Anthropic(base_url=server.gateway.url, auth_token=episode.bearer, max_retries=0)
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    for number in range(3):
        with client.beta.messages.stream(
            model="claude-opus-5",
            max_tokens=32_000,
            betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
            system=[
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.177; cch={number:05x};"},
                {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}},
            ],
            tools=[{"name": "add", "description": "Add.", "input_schema": ADD}],
            thinking={"type": "adaptive"},
            metadata={"user_id": "someone"},
            messages=messages,
        ) as stream:
            message = stream.get_final_message()
        content = [block.model_dump(exclude_none=True) for block in message.content]
        content[-1]["cache_control"] = {"type": "ephemeral"}
        messages.append({"role": "assistant", "content": content})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": [{"type": "text", "text": str(add(**block.input))}],
            }
            for block in message.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    assert message.stop_reason == "end_turn"
    assert [turn.extends for turn in server.turns(episode)] == [False, True, True]


def test_codex_requests_with_all_its_tools_extend(server: Server) -> None:
    """Codex streams without storing, offers hosted, custom and grouped tools, and sends back reasoning."""
    patch = '<tool_call>{"name": "apply_patch", "arguments": {"input": "*** Begin Patch\\n"}}</tool_call>'
    read = '<think>now read</think><tool_call>{"name": "mcp__disk__read", "arguments": {"path":"a"}}</tool_call>'
    episode = server.open(patch, read, ANSWER)
    client = openai.OpenAI(**openai_settings(server, episode))
    items: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandboxed."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
    ]
    outputs = {"custom_tool_call": "custom_tool_call_output", "function_call": "function_call_output"}
    seen = []
    for _ in range(3):
        done = []
        for event in client.responses.create(
            model="gpt-5-codex",
            instructions="You are Codex.",
            input=items,
            tools=[
                {"type": "custom", "name": "apply_patch", "description": "Patch.", "format": {"type": "text"}},
                {
                    "type": "namespace",
                    "name": "mcp__disk",
                    "description": "",
                    "tools": [{"type": "function", "name": "read"}],
                },
                {"type": "web_search"},
            ],
            tool_choice="auto",
            parallel_tool_calls=True,
            reasoning={"effort": "medium", "summary": "auto"},
            store=False,
            stream=True,
            include=["reasoning.encrypted_content"],
            prompt_cache_key="key",
        ):
            if event.type == "response.output_item.done":
                done.append(event.item)
        assert event.type == "response.completed"
        items += [item.model_dump(exclude_none=True) for item in done]
        calls = [item for item in done if item.type in outputs]
        items += [{"type": outputs[call.type], "call_id": call.call_id, "output": "ok"} for call in calls]
        seen += [(call.type, call.name, getattr(call, "namespace", None)) for call in calls]
    assert seen == [("custom_tool_call", "apply_patch", None), ("function_call", "read", "mcp__disk")]
    assert [turn.extends for turn in server.turns(episode)] == [False, True, True]


# ---- agent frameworks ----


def test_langgraph_agent_is_captured_exactly(server: Server, require: Any) -> None:
    require("langgraph")
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    episode = server.open(*TALK)
    tools = [tool(add)]
    model = ChatOpenAI(model="m", **openai_settings(server, episode)).bind_tools(tools)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    state = graph.compile().invoke({"messages": [{"role": "user", "content": QUESTION}]})
    assert state["messages"][-1].content == "It is 12 \N{PARTY POPPER}."
    assert [turn.extends for turn in server.turns(episode)] == [False, False, True]  # it drops the first thinking


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
def test_openai_agents_are_captured_exactly(server: Server, require: Any, api: str, streamed: bool) -> None:
    agents = require("agents")
    episode = server.open(*TALK)
    agents.set_tracing_disabled(True)
    models = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}

    async def run() -> Any:
        async with openai.AsyncOpenAI(**openai_settings(server, episode)) as client:
            model = models[api](model="m", openai_client=client)
            agent = agents.Agent(
                name="adder", instructions="Use tools.", model=model, tools=[agents.function_tool(add)]
            )
            if not streamed:
                return await agents.Runner.run(agent, QUESTION)
            result = agents.Runner.run_streamed(agent, QUESTION)
            async for _ in result.stream_events():
                pass
            return result

    assert asyncio.run(run()).final_output == "It is 12 \N{PARTY POPPER}."
    keeps_thinking = api == "responses"
    assert [turn.extends for turn in server.turns(episode)] == [False, keeps_thinking, True]


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_pydantic_ai_agent_is_captured_exactly(server: Server, require: Any, api: str) -> None:
    pydantic_ai = require("pydantic_ai")
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    episode = server.open(*TALK)

    async def run() -> str:
        url, key = server.gateway.url, episode.bearer
        if api == "messages":
            model: Any = AnthropicModel("m", provider=AnthropicProvider(base_url=url, api_key=key))
        else:
            chosen = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
            model = chosen("m", provider=OpenAIProvider(base_url=f"{url}/v1", api_key=key))
        agent = pydantic_ai.Agent(model, instructions="Use tools.", tools=[add])
        return str((await agent.run(QUESTION)).output)

    assert asyncio.run(run()) == "It is 12 \N{PARTY POPPER}."
    assert [turn.extends for turn in server.turns(episode)] == [False, True, True]


def test_smolagents_agent_is_captured_exactly(server: Server, require: Any) -> None:
    """It writes its own history as text, so each step is a context of its own. It requires a call."""
    smolagents = require("smolagents")
    require("llguidance")
    final = '<tool_call>{"name": "final_answer", "arguments": {"answer": "12"}}</tool_call>'
    episode = server.open(CALLS[0], final)
    model = smolagents.OpenAIModel(
        "m", api_base=f"{server.gateway.url}/v1", api_key=episode.bearer, client_kwargs={"max_retries": 0}
    )
    agent = smolagents.ToolCallingAgent(tools=[smolagents.tool(add)], model=model, verbosity_level=0, max_steps=3)
    assert agent.run(QUESTION) == "12"
    assert [turn.extends for turn in server.turns(episode)] == [False, False]


# ---- errors ----


@pytest.mark.parametrize(
    ("path", "body"),
    [("chat/completions", CHAT), ("responses", without_image(RESPONSES)), ("messages", without_image(ANTHROPIC))],
    ids=["chat", "responses", "messages"],
)
def test_malformed_requests_never_fail_the_server(server: Server, path: str, body: dict[str, Any]) -> None:
    episode = server.open(*TALK)
    headers = {"Authorization": f"Bearer {episode.bearer}"}

    @settings(max_examples=30)
    @given(changed=bodies({**body, "stream": False}))
    def check(changed: dict[str, Any]) -> None:
        answer = client.post(f"/v1/{path}", content=json.dumps(changed), headers=headers)
        assert answer.status_code in (200, 400), answer.text
        assert answer.status_code == 200 or answer.json()["error"]["message"]

    with httpx2.Client(base_url=server.gateway.url, timeout=60) as client:
        assert client.post(f"/v1/{path}", json={**body, "stream": False}, headers=headers).status_code == 200
        check()
    server.turns(episode)


def test_clients_raise_their_own_errors(server: Server) -> None:
    episode = server.open("hello")
    client = openai.OpenAI(**openai_settings(server, episode))
    with pytest.raises(openai.BadRequestError, match="file_search"):
        client.responses.create(model="m", input="x", tools=[{"type": "file_search", "vector_store_ids": []}])
    with pytest.raises(openai.BadRequestError) as too_long:
        client.responses.create(model="m", input="x" * 200_000)
    assert too_long.value.code == "context_length_exceeded"
    other = anthropic.Anthropic(**anthropic_settings(server, episode))
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        other.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "x" * 200_000}])
    with pytest.raises(anthropic.NotFoundError):
        other.messages.batches.list()
    with pytest.raises(anthropic.AuthenticationError):
        other.with_options(api_key="wrong").messages.create(model="m", max_tokens=5, messages=[])
    server.call(server.gateway.close_episode(episode))
    with pytest.raises(anthropic.ConflictError):
        other.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "x"}])
