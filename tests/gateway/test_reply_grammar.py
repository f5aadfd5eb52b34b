"""Replies by a schema or a required call, from an untrained model, through the official clients."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel, Field

from constraints_for_tests import SCHEMA, make_engine, require_llguidance, trained_model
from episodes_for_tests import limits, renderer
from gateway_for_tests import episode_key, open_episode, open_gateway, request_of
from render.render_cases import FAMILIES, KINDS, case
from turnwise.core.constraint import Constraint
from turnwise.core.messages import ToolSpec, user
from turnwise.core.trajectory import Stop
from turnwise.gateway.capture import GatewayEpisode
from turnwise.gateway.chat import ReplyRule, RequestError
from turnwise.gateway.reply_grammar import build_constraint, call_format
from turnwise.gateway.server import Gateway

__all__ = ["require_llguidance"]


class Block(BaseModel):
    size: int = Field(ge=0, le=99)
    colour: Literal["red", "blue", "green"]
    name: str = Field(max_length=6)


SMALL = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["size"],
}
SAID: list[Any] = [{"role": "user", "content": "Describe a block."}]
FUNCTIONS = [{"type": "function", "function": {"name": name, "parameters": SMALL}} for name in ("build", "break")]


@asynccontextmanager
async def serving(**changes: Any) -> AsyncIterator[tuple[Gateway, GatewayEpisode]]:
    settings = {"limits": limits(max_new_tokens=200)} | changes
    async with open_gateway(make_engine(trained_model()), **settings) as gateway:
        yield gateway, await gateway.open_episode(episode_key())


Ask = Callable[[openai.AsyncOpenAI, anthropic.AsyncAnthropic], Any]


def ask(function: Ask) -> tuple[Any, GatewayEpisode]:
    async def run() -> tuple[Any, GatewayEpisode]:
        async with serving() as (gateway, episode):
            access: dict[str, Any] = {"api_key": episode.bearer, "max_retries": 0}
            first = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", **access)
            second = anthropic.AsyncAnthropic(base_url=gateway.url, **access)
            return await function(first, second), episode

    return asyncio.run(run())


def test_chat_replies_match_their_schema() -> None:
    reply, episode = ask(
        lambda client, _: client.chat.completions.parse(model="m", messages=SAID, n=6, response_format=Block)
    )
    assert len({choice.message.content for choice in reply.choices}) > 3
    for choice in reply.choices:
        assert isinstance(choice.message.parsed, Block)
        assert choice.finish_reason == "stop"
    assert all(turn.constraint is not None for turn in episode.turns())


def test_responses_match_their_schema() -> None:
    reply, _ = ask(lambda client, _: client.responses.parse(model="m", input="Describe.", text_format=Block))
    assert isinstance(reply.output_parsed, Block)


def test_messages_match_their_schema() -> None:
    settings = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    reply, _ = ask(
        lambda _, client: client.messages.create(model="m", max_tokens=200, messages=SAID, extra_body=settings)
    )
    Block.model_validate_json(reply.content[0].text)


def test_json_object_is_an_object_unless_it_is_cut_off() -> None:
    reply, _ = ask(
        lambda client, _: client.chat.completions.create(
            model="m", messages=SAID, response_format={"type": "json_object"}, max_tokens=5, n=8
        )
    )
    for choice in reply.choices:
        assert choice.message.content.startswith("{")
        assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)
    assert {choice.finish_reason for choice in reply.choices} == {"stop", "length"}


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"build", "break"}), ({"type": "function", "function": {"name": "build"}}, {"build"})],
    ids=["required", "named"],
)
def test_chat_calls_the_required_tool(choice: Any, names: set[str]) -> None:
    reply, episode = ask(
        lambda client, _: client.chat.completions.create(
            model="m", messages=SAID, tools=FUNCTIONS, tool_choice=choice, n=6
        )
    )
    for each in reply.choices:
        assert (each.finish_reason, each.message.content) == ("tool_calls", None)
        (call,) = each.message.tool_calls
        assert call.function.name in names
        assert 0 <= json.loads(call.function.arguments)["size"] <= 9
    assert all(turn.stop is Stop.EOS for turn in episode.turns())


def test_messages_call_the_required_tool() -> None:
    tools = [{"name": name, "input_schema": SMALL} for name in ("build", "break")]
    for choice, names in (({"type": "any"}, {"build", "break"}), ({"type": "tool", "name": "build"}, {"build"})):
        reply, _ = ask(
            lambda _, client, choice=choice: client.messages.create(
                model="m", max_tokens=200, messages=SAID, tools=tools, tool_choice=choice
            )
        )
        assert reply.stop_reason == "tool_use"
        assert reply.content[0].name in names and 0 <= reply.content[0].input["size"] <= 9


def test_streamed_call_is_followed_by_its_result() -> None:
    """The context grows by what was sampled: the client's copy of the call is recognised."""

    async def two_turns(client: openai.AsyncOpenAI, _: Any) -> list[bool]:
        body: dict[str, Any] = {"model": "m", "tools": FUNCTIONS, "tool_choice": "required"}
        messages = list(SAID)
        for _ in range(2):
            async with client.chat.completions.stream(messages=messages, **body) as stream:
                message = (await stream.get_final_completion()).choices[0].message
            call = message.tool_calls[0]
            messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
        return []

    _, episode = ask(two_turns)
    assert [turn.extends for turn in episode.turns()] == [False, True]


def test_offered_tools_are_callable_beside_a_schema() -> None:
    body = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SMALL}}}
    reply, _ = ask(
        lambda client, _: client.chat.completions.create(model="m", messages=SAID, tools=FUNCTIONS, n=16, **body)
    )
    kinds = set()
    for choice in reply.choices:
        text = choice.message.tool_calls[0].function.arguments if choice.message.tool_calls else choice.message.content
        assert set(json.loads(text)) == {"size"}
        kinds.add(choice.finish_reason)
    assert kinds == {"stop", "tool_calls"}


@pytest.mark.parametrize("text", ["</tool_call>", "<think>x", '</think>"}\n{['])
def test_tags_in_strings_are_text(text: str) -> None:
    parameters = {"type": "object", "properties": {"x": {"const": text}}, "required": ["x"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    reply, _ = ask(
        lambda client, _: client.chat.completions.create(model="m", messages=SAID, tools=tools, tool_choice="required")
    )
    (call,) = reply.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"x": text}
    said, _ = ask(
        lambda client, _: client.chat.completions.create(
            model="m",
            messages=SAID,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": parameters}},
        )
    )
    assert json.loads(said.choices[0].message.content) == {"x": text}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def product(factors: int) -> dict[str, Any]:
    def choice(number: int) -> dict[str, Any]:
        parts = [{"properties": {f"{side}{number}": {"type": "integer"}}} for side in "ab"]
        return {"anyOf": [{"type": "object", "required": list(part["properties"]), **part} for part in parts]}

    return {"allOf": [choice(number) for number in range(factors)]}


HOSTILE = {
    "deep": nested(200),
    "deeper than json.dumps": nested(900),
    "huge": {"enum": [f"value {number}" for number in range(20_000)]},
    "exponential": product(20),
    "endless": {"$ref": "#"},
    "endless inside": {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]},
    "remote": {"$ref": "http://127.0.0.1:1/schema.json"},
    "unsupported": {"not": {"type": "string"}},
    "many optional properties": {
        "type": "object",
        "properties": {f"p{number}": {"type": "string"} for number in range(600)},
    },
    "more of them": {
        "type": "object",
        "properties": {f"p{number}": {"type": "string"} for number in range(1500)},
    },
    "not a schema": {"type": 3},
    "bad pattern": {"type": "string", "pattern": "(("},
    "special token": {"const": "<|end|>"},
}


NAMED = set(HOSTILE) - {"deeper than json.dumps", "endless inside", "many optional properties", "special token"}
"""Schemas that fail to compile: the error names their tool. Others fail while a reply is sampled, or before."""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_by_the_name_of_the_setting(name: str) -> None:
    async def run() -> tuple[int, list[RequestError]]:
        turns, refused = 0, []
        async with open_episode(make_engine(trained_model())) as episode:
            for setting in ("response_format", "tool_choice"):
                tool = ToolSpec(name="f", description="", parameters=HOSTILE[name])
                schema, tools = (None, (tool,)) if setting == "tool_choice" else (HOSTILE[name], ())
                rule = ReplyRule(setting=setting, schema=schema, tools=tools)
                with pytest.raises(RequestError) as raised:
                    await episode.reply(request_of(user("x"), rule=rule))
                refused.append(raised.value)
            turns = len(episode.turns())
            assert await episode.reply(request_of(user("x"), max_tokens=3))  # the engine is unharmed
        return turns, refused

    turns, refused = asyncio.run(run())
    assert turns == 0
    assert [each.param for each in refused] == ["response_format", "tool_choice"]
    assert all(each.status == 400 and len(each.message) < 500 for each in refused)
    assert ("the parameters of 'f'" in refused[1].message) == (name in NAMED)


def test_grammars_are_compiled_in_a_thread_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    grammars = renderer().grammars
    compiled = grammars.compile

    def watched(constraint: Constraint) -> Any:
        threads.append(threading.current_thread().name)
        return compiled(constraint)

    async def run() -> None:
        async with open_episode(make_engine(trained_model())) as episode:
            rule = ReplyRule(setting="response_format", schema={"enum": ["unlike any other"]}, tools=())
            await episode.reply(request_of(user("x"), rule=rule))

    monkeypatch.setattr(grammars, "compile", watched)
    monkeypatch.setattr(grammars, "_compiled", watched)
    asyncio.run(run())
    in_threads = [each.startswith("grammar") for each in threads]
    assert in_threads == [True, True, False]  # the engine finds the last one in the cache, which is not used here


def test_constraint_survives_a_restart_of_the_gateway(tmp_path: Path) -> None:
    async def run() -> tuple[Any, Any]:
        rule = ReplyRule(setting="response_format", schema=SCHEMA, tools=())
        async with open_gateway(make_engine(trained_model()), tmp_path) as gateway:
            episode = await gateway.open_episode(episode_key())
            await episode.reply(request_of(user("x"), rule=rule))
            before = episode.turns()
        async with open_gateway(make_engine(trained_model()), tmp_path) as gateway:
            return before, (await gateway.open_episode(episode_key(), restore=True)).turns()

    before, after = asyncio.run(run())
    assert before == after and before[0].constraint is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_grammars_fit_the_template_and_vocabulary(family: Any, kind: str) -> None:
    """The text of a call in the format of the template is what the grammar allows, and is read as that call."""
    _, other = case(family.name, kind)
    tool = ToolSpec(name="add", description="", parameters=SMALL)
    rule = ReplyRule(setting="tool_choice", schema=None, tools=(tool,))
    form = call_format(other)
    text = f'{form.before}add{form.between}{{"size": 4}}{form.after}'
    call = form.read(text, [tool])
    assert call is not None and json.loads(call.arguments) == {"size": 4}
    closed = "</think>\n\n" if other.opens_thinking else ""
    constraint = build_constraint(rule, other)
    ids = [*other.answer(f"{closed}{text}")] if not other.opens_thinking else [*other.answer(f"<think>{closed}{text}")]
    assert len(other.grammars.allowed_sets(constraint, ids)) == len(ids)


AGENT = """
from typing import Literal
from pydantic import BaseModel, Field
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

class Block(BaseModel):
    size: int = Field(ge=0, le=99)
    colour: Literal["red", "blue", "green"]

async def describe(client, task):
    model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))
    agent = Agent(model, output_type=Block, retries=0)
    block = (await agent.run(task["question"])).output
    reply = await client.chat.completions.parse(
        model="policy", messages=[{"role": "user", "content": task["question"]}], response_format=Block
    )
    return block.size / 99 + (reply.choices[0].message.parsed.colour == "red")
"""
RUN = """
[agent]
function = "agent.py:describe"
tasks = "tasks.jsonl"

[rollout]
groups = 2
group_size = 4
max_new_tokens = 120
max_tokens = 1024

[algo]
advantage = "grpo"

[train]
steps = 2
mini_batch = 8

[eval]
episodes = 3
"""


SPLITS = ("train", "validation", "test")


def test_structured_agent_is_trained_and_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optional_part: Callable[[str], Any]
) -> None:
    """Every reply of the untrained model is valid: an invalid one would raise in the agent."""
    pytest.importorskip("pydantic_ai")
    import turnwise as tw

    rows = [{"question": f"Block {number} to {split}?", "split": split} for split in SPLITS for number in range(3)]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "agent.toml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    run = tw.train(str(tmp_path / "agent.toml"), quiet=True, name="structured")
    for step in (1, 2):
        episodes = run.trajectories(step)
        assert len(episodes) == 8
        turns = [turn for episode in episodes for turn in episode["turns"]]
        assert all(turn["grammar"].startswith("start:") for turn in turns) and len(turns) == 16
    for turn in (turn for episode in run.trajectories(1) for turn in episode["turns"]):
        assert turn["learner_logprobs"] == pytest.approx(turn["action_logprobs"], abs=1e-4)
    result = run.evaluate(episodes=3, out=tmp_path / "evaluation", quiet=True)
    assert len(result.trajectories) == 3
