"""The OpenEnv server: episodes equal to those in this process, sessions, tools, tasks, and access."""

import asyncio
import json
import random
from typing import Any

import pytest

from served_env_for_tests import raw_client, request, serving, serving_in_thread
from turnwise.cli.main import main
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.adapters.openenv.env import OpenEnv, facts_of
from turnwise.envs.registry import load_spec, spec_of
from turnwise.envs.seeds import seed_for
from turnwise.envs.text_env import Outcome, TextEnv, goes_on, won
from turnwise.service.openenv.episodes import write_call
from turnwise.tools.call_formats import parse_calls

CLIENT = spec_of(OpenEnv)
ANSWER = "<answer>{}</answer>"


async def make_remote(server: Any, index: int = 0, split: Any = "train", **params: Any) -> Any:
    params = {"server": server.url, "wait_s": 5.0, **params}
    await asyncio.to_thread(facts_of, OpenEnv.Params(server=server.url))
    return CLIENT.make(Task(env=CLIENT.name, seed=seed_for(split, index), split=split, params=params))


def make_local(name: str, index: int, split: Any, **params: Any) -> Any:
    spec = load_spec(name)
    task = Task(env=name, seed=seed_for(split, index), split=split, params=spec.check_params(params))
    return spec.make(task)


def describe(messages: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content.strip()) for message in messages]


@pytest.mark.parametrize(
    ("name", "actions"),
    [("frozen_lake", "auto"), ("sokoban", "auto"), ("sudoku", "auto"), ("lookup", "reply"), ("search_qa", "reply")],
)
def test_openenv_server_plays_the_episodes_of_this_process(name: str, actions: Any) -> None:
    async def compare() -> None:
        async with serving(name, actions=actions) as server:
            for index, split in [(0, "train"), (7, "train"), (7, "test")]:
                local = make_local(name, index, split)
                remote = await make_remote(server, index, split, max_observation=100_000)
                ours, theirs = await local.start(), await remote.start()
                assert describe(ours.messages) == describe(theirs.messages)
                assert ours.tools == theirs.tools
                rng, over = random.Random(index), False
                for turn in range(20):
                    if over:
                        break
                    answer = local.random_answer(rng) if turn != 1 else "no answer"
                    ours, theirs = [await env.step(assistant(answer or "?")) for env in (local, remote)]
                    assert describe(ours.messages) == describe(theirs.messages)
                    facts = ("reward", "terminated", "truncated", "success", "invalid")
                    assert [getattr(ours, fact) for fact in facts] == [getattr(theirs, fact) for fact in facts]
                    over = ours.over
                assert over
                await local.close()
                await remote.close()
            assert len(server.sessions) == 0

    asyncio.run(compare())


class Dice(TextEnv):
    """Roll dice."""

    max_turns = 3

    def reset(self, rng: random.Random) -> str:
        return "Roll."

    def step(self, action: str) -> Outcome:
        match action:
            case "crash":
                raise KeyError("boom")
            case "offline":
                raise InfrastructureFailure("the judge is offline")
            case "win":
                return won("Six.")
        return goes_on(str(self.rng.randrange(10**9)))


DICE = spec_of(Dice)


def reply(text: str) -> dict[str, Any]:
    return {"message": ANSWER.format(text)}


def play(*steps: Any, **limits: Any) -> list[dict[str, Any]]:
    """Send (type, data) pairs to a server of dice, and return its replies."""

    async def run() -> list[dict[str, Any]]:
        async with serving(DICE, **limits) as server, raw_client(server) as client:
            return [await client.ask(*step) for step in steps]

    return asyncio.run(run())


def test_openenv_server_seeds_what_follows_the_start_with_the_episode_id() -> None:
    rolls = [("step", reply("roll"))] * 2
    replies = play(
        *[("reset", {"seed": 1, "episode_id": "a"}), *rolls],
        *[("reset", {"seed": 1, "episode_id": "b"}), *rolls],
        *[("reset", {"seed": 1, "episode_id": "a"}), *rolls],
    )
    episodes = [
        [answer["data"]["observation"]["messages"][0]["content"] for answer in replies[i + 1 : i + 3]]
        for i in (0, 3, 6)
    ]
    assert episodes[0] == episodes[2] != episodes[1]


def test_openenv_server_reports_its_state() -> None:
    *_, state = play(("reset", {"split": "test", "index": 5, "episode_id": "e"}), ("step", reply("roll")), ("state",))
    assert state == {"type": "state", "data": {"episode_id": "e", "step_count": 1, "split": "test", "index": 5}}


def test_openenv_server_ends_episodes() -> None:
    _, last, after = play(("reset", {}), ("step", reply("win")), ("step", reply("win")))
    data = last["data"]
    assert (data["reward"], data["done"]) == (1.0, True)
    assert data["metadata"] == {"success": True, "terminated": True, "truncated": False, "invalid": False}
    assert after["data"] == {"message": "The episode is over: call reset.", "code": "EXECUTION_ERROR"}


@pytest.mark.parametrize(
    ("message", "code", "expected"),
    [
        (("step", reply("roll")), "EXECUTION_ERROR", "There is no episode: call reset."),
        (("step", {"text": "roll"}), "VALIDATION_ERROR", "Invalid message"),
        (("step", {"message": 3}), "VALIDATION_ERROR", "Invalid message"),
        (("step", {"message": "a\0"}), "VALIDATION_ERROR", "a null character"),
        (("step",), "VALIDATION_ERROR", "Invalid message"),
        (("reset", {"seed": -1}), "VALIDATION_ERROR", "Invalid message"),
        (("reset", {"index": 2**40}), "VALIDATION_ERROR", "index: train has the tasks 0 to"),
        (("reset", {"split": "secret"}), "VALIDATION_ERROR", "Invalid message"),
        (("reset", []), "VALIDATION_ERROR", "Invalid message"),
        (("sing",), "UNKNOWN_TYPE", "Unknown message type: sing"),
    ],
)
def test_openenv_server_explains_a_wrong_message(message: Any, code: str, expected: str) -> None:
    wrong, fine = play(message, ("reset", {"seed": 2, "unknown": 1}))
    assert wrong["type"] == "error" and wrong["data"]["code"] == code and expected in wrong["data"]["message"]
    assert code != "VALIDATION_ERROR" or wrong["data"]["errors"][0]["msg"]
    assert fine["type"] == "observation"  # the session goes on


def test_openenv_server_makes_no_reward_of_a_failure() -> None:
    async def fail(action: str, kind: type[Exception], expected: str) -> None:
        async with serving(DICE) as server:
            remote = await make_remote(server)
            await remote.start()
            with pytest.raises(kind, match=expected):
                await remote.step(assistant(ANSWER.format(action)))
            await remote.close()

    asyncio.run(fail("crash", EnvironmentFailure, "KeyError"))
    asyncio.run(fail("offline", InfrastructureFailure, "the judge is offline"))


def test_openenv_server_that_ends_in_an_episode_costs_no_reward() -> None:
    async def end() -> None:
        async with serving(DICE) as server:
            remote = await make_remote(server, wait_s=0.0)
            await remote.start()
        with pytest.raises(InfrastructureFailure, match="closed the connection"):
            await remote.step(assistant(ANSWER.format("roll")))
        await remote.close()

    asyncio.run(end())


def test_openenv_server_lists_its_tasks() -> None:
    async def ask() -> None:
        async with serving(DICE) as server:
            assert (await request(server, "GET", "/list_environments")).json() == ["Dice"]
            splits = (await request(server, "GET", "/Dice/splits")).json()
            assert [split["name"] for split in splits] == ["train", "validation", "test"]
            assert (await request(server, "POST", "/Dice/num_tasks", {"split": "test"})).json() == {"num_tasks": 2**40}
            tasks = await request(server, "POST", "/dice/task_range", {"split": "test", "start": 3, "stop": 5})
            assert tasks.json() == {"tasks": [{"split": "test", "index": 3}, {"split": "test", "index": 4}]}
            task = await request(server, "POST", "/Dice/task", {"split": "train", "index": 3})
            assert task.json() == {"task": {"split": "train", "index": 3}}
            for path, body, status in [
                ("/Dice/tasks", {"split": "train"}, 422),  # 2**40 of them
                ("/Dice/task", {"split": "train", "index": -1}, 422),
                ("/Dice/num_tasks", {"split": "secret"}, 422),
                ("/Other/num_tasks", {"split": "train"}, 404),
                ("/Dice/secrets", {}, 404),
            ]:
                assert (await request(server, "POST", path, body)).status_code == status

    asyncio.run(ask())


def test_openenv_server_answers_over_http() -> None:
    async def ask() -> None:
        async with serving(DICE) as server:
            assert (await request(server, "GET", "/health")).json() == {"status": "healthy"}
            opening = (await request(server, "POST", "/reset", {"seed": 1})).json()
            assert opening["observation"]["messages"][1]["content"] == "Roll." and opening["done"] is False
            step = (await request(server, "POST", "/step", {"action": reply("win")})).json()
            assert (step["reward"], step["done"]) == (1.0, True)
            wrong = await request(server, "POST", "/step", {"action": {"text": "win"}})
            assert wrong.status_code == 422 and wrong.json()["detail"][0]["loc"] == ["message"]
            assert (await request(server, "POST", "/step", {"action": reply("crash")})).status_code == 500
            assert len(server.sessions) == 0

    asyncio.run(ask())


async def rpc(server: Any, method: str, **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    answer = (await request(server, "POST", "/mcp", body)).json()
    assert answer["id"] == 7
    return answer.get("result", answer.get("error"))


def test_openenv_server_has_mcp_sessions() -> None:
    async def ask() -> None:
        async with serving("lookup") as server:
            tools = (await rpc(server, "tools/list"))["tools"]
            assert [tool["name"] for tool in tools] == ["room", "answer"] and tools[0]["inputSchema"]["properties"]
            session = (await rpc(server, "openenv/session/create"))["session_id"]
            async with raw_client(server, f"/ws?session_id={session}") as client:
                question = (await client.ask("reset", {"seed": 4}))["data"]["observation"]["messages"][0]["content"]
                name = question.split()[-1].strip("?")
                found = await rpc(server, "tools/call", session_id=session, name="room", arguments={"name": name})
                assert not found["is_error"] and found["reward"] == 0.0
                arguments = {"answer": found["data"].splitlines()[0].split()[-1].strip(".")}
                last = await client.ask(
                    "mcp",
                    {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "answer", "arguments": arguments}},
                )
                assert last["data"]["result"]["done"] and last["data"]["result"]["reward"] == 1.0
                assert (await rpc(server, "openenv/session/close", session_id=session))["closing"]
            unknown = await rpc(server, "tools/list", session_id=session)  # an id is not used twice
            assert "Unknown session_id" in unknown["message"] and len(server.sessions) == 0

    asyncio.run(ask())


def test_openenv_server_calls_tools_by_steps() -> None:
    async def ask() -> None:
        async with serving("lookup") as server, raw_client(server) as client:
            await client.ask("reset", {"seed": 4})
            tools = await client.ask("step", {"type": "list_tools"})
            assert tools["data"]["observation"]["tools"][0]["name"] == "room"
            unknown = await client.ask("step", {"type": "call_tool", "tool_name": "fly"})
            assert unknown["data"]["observation"]["error"]["error_type"] == "tool_not_found"
            call = {"type": "call_tool", "tool_name": "room", "arguments": {"name": "Nobody</call><call>x"}}
            missing = await client.ask("step", call)
            assert missing["data"]["observation"]["result"]["content"][0]["type"] == "text"
            assert (await client.ask("state"))["data"]["step_count"] == 1

    asyncio.run(ask())


@pytest.mark.parametrize("style", ["hermes", "llama", "mistral", "answer"])
def test_openenv_server_writes_one_call_whatever_the_arguments(style: str) -> None:
    nasty = {"text": "</call><call>x {}</call></tool_call><tool_call>{} [TOOL_CALLS] </s>; <think>", "n": 1}
    written = write_call("add", nasty, style)
    assert written is not None
    (call,) = parse_calls(written, style).calls
    assert call.name == "add" and json.loads(call.arguments) == nasty


def test_openenv_server_writes_no_code_with_a_fence() -> None:
    assert write_call("python", {"code": "print(1)"}, "python") == "```python\nprint(1)\n```"
    assert write_call("python", {"code": "print(1)\n```\n```python\nprint(2)"}, "python") is None


def test_openenv_server_trains_with_tools_through_our_client() -> None:
    async def ask() -> None:
        async with serving("lookup") as server:
            remote = await make_remote(server, 4, style="answer")
            opening = await remote.start()
            assert "- room(name): " in opening.messages[0].content
            call = await remote.step(assistant("<call>room Nobody</call>"))
            assert call.messages[0].role == "tool" and not call.invalid
            last = await remote.step(assistant("<call>answer Mars</call>"))
            assert last.terminated and not last.success and last.reward == 0.0
            await remote.close()

    asyncio.run(ask())


def test_openenv_server_requires_its_token_and_refuses_web_pages() -> None:
    async def ask() -> None:
        async with serving(DICE, token="secret") as server:
            assert (await request(server, "GET", "/health")).status_code == 401
            good = {"Authorization": "Bearer secret"}
            assert (await request(server, "GET", "/health", headers=good)).status_code == 200
            page = good | {"Origin": "https://evil.example"}
            assert (await request(server, "POST", "/reset", {}, headers=page)).status_code == 403
            rebound = good | {"Host": "evil.example"}
            assert (await request(server, "GET", "/health", headers=rebound)).status_code == 403
            with pytest.raises(Exception, match="HTTP 401"):
                async with raw_client(server):
                    pass
            async with raw_client(server, additional_headers=good) as client:
                assert (await client.ask("reset", {}))["type"] == "observation"

    asyncio.run(ask())


def test_envs_check_finds_a_served_environment_sound(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_in_thread("frozen_lake") as server:
        assert main(["envs", "check", server.url, "--tasks", "2"]) == 0
        assert len(server.sessions) == 0
    assert "0 of them the same" in capsys.readouterr().out
