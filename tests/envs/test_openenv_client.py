"""The client of OpenEnv servers against a scripted one: whole episodes, lost and full servers, hostile answers."""

import asyncio
import json
import random
import re
from typing import Any

import pytest
from websockets.asyncio.client import connect

from openenv_for_tests import TOOL_ACTION, error, observation, scripted_server
from turnwise.cli.main import main
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.envs.adapters.openenv.connection import Session
from turnwise.envs.adapters.openenv.env import OpenEnv, endpoint_of, facts_of
from turnwise.envs.adapters.openenv.wire import ServerFull
from turnwise.envs.registry import spec_of
from turnwise.envs.seeds import seed_for
from turnwise.rollout.failures import run_with_retries

SPEC = spec_of(OpenEnv)


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat attempts at once, and give up soon."""
    monkeypatch.setattr("turnwise.envs.adapters.openenv.connection.FIRST_WAIT_S", 0.001)
    monkeypatch.setattr("turnwise.envs.adapters.openenv.connection.LONGEST_WAIT_S", 0.01)
    monkeypatch.setattr("turnwise.envs.adapters.openenv.connection.CLOSE_S", 0.5)


def make(server: Any, index: int = 0, split: Any = "train", member: int = 0, **params: Any) -> Any:
    params = {"server": server.url, "wait_s": 30.0, **params}
    return SPEC.make(Task(env=SPEC.name, seed=seed_for(split, index), split=split, params=params), member)


async def play(runner: Any, *replies: str) -> list[Any]:
    try:
        results = [await runner.start()]
        for reply in replies:
            results.append(await runner.step(assistant(reply)))
        return results
    finally:
        await runner.close()


def echo(server: Any, socket: Any, message: Any) -> Any:
    if message["type"] == "reset":
        return observation("Say something.", reward=None)
    said = message["data"]["message"]
    return observation(f"You said {said}.", reward=len(said) / 10, done=said == "bye")


def failure(respond: Any, *replies: str, kind: type[Exception], **params: Any) -> str:
    """Play against a server and return the text of the failure."""
    with scripted_server(respond) as server:
        with pytest.raises(kind) as raised:
            asyncio.run(play(make(server, **params), *replies))
        return str(raised.value).replace(server.url, "URL").replace(str(server.port), "PORT")


def step_reply(reply: Any) -> Any:
    return lambda server, socket, message: observation("Go.") if message["type"] == "reset" else reply


def test_openenv_client_plays_an_episode() -> None:
    with scripted_server(echo) as server:
        opening, first, last = asyncio.run(play(make(server), "<answer>hello</answer>", "<answer>bye</answer>"))
        prompt = opening.messages[0].content
        assert "A scripted environment." in prompt and "- message: What to say" in prompt
        assert "Answer: <answer>MESSAGE</answer>" in prompt
        assert opening.messages[1].content == "Say something."
        assert first.messages[0].content == "You said hello." and (first.reward, first.over) == (0.5, False)
        assert (last.reward, last.terminated, last.success) == (0.3, True, True)
        assert [message["type"] for message in server.messages] == ["reset", "step", "step", "close"]
        assert server.open == 0


def test_openenv_client_addresses_randomness() -> None:
    with scripted_server(echo) as server:
        for index, split, member in [(5, "train", 0), (5, "train", 1), (5, "validation", 0), (5, "test", 0)]:
            asyncio.run(play(make(server, index, split, member)))
        asyncio.run(play(make(server, 5, "train", 1)))
        resets = [message["data"] for message in server.messages if message["type"] == "reset"]
        assert [reset["seed"] for reset in resets] == [15, 15, 16, 17, 15]  # disjoint splits, equal groups
        assert len({reset["episode_id"] for reset in resets}) == 4 and resets[4] == resets[1]


def test_openenv_client_rejects_bad_actions_without_a_step() -> None:
    def strict(server: Any, socket: Any, message: Any) -> Any:
        if message["type"] == "step" and message["data"]["message"] == "no":
            return error("VALIDATION_ERROR", errors=[{"loc": ["message"], "msg": "too short"}])
        return echo(server, socket, message)

    with scripted_server(strict) as server:
        replies = ["no answer", "<answer>no</answer>", "<answer>a\ud800</answer>", "<answer>yes</answer>"]
        long = f"<answer>{'x' * 1_000_000}</answer>"
        _, unread, rejected, surrogate, huge, good = asyncio.run(play(make(server), *replies[:3], long, replies[3]))
        assert unread.invalid and rejected.invalid and surrogate.invalid and huge.invalid and not good.invalid
        assert "message: too short" in rejected.messages[0].content
        assert len([message for message in server.messages if message["type"] == "step"]) == 2


@pytest.mark.parametrize(
    ("reward", "expected"),
    [("NaN", "NaN|nan"), ("Infinity", "inf"), ('"1"', "the text '1'"), ("1e300", "1e\\+300"), ("[]", "\\[\\]")],
)
def test_openenv_client_takes_no_number_from_a_bad_reward(reward: str, expected: str) -> None:
    text = json.dumps(observation("Go.")).replace('"reward": 0.0', f'"reward": {reward}')
    assert re.search(
        f"reward is .*({expected})", failure(step_reply(text), "<answer>a</answer>", kind=EnvironmentFailure)
    )


def test_openenv_client_refuses_null_at_the_end_only() -> None:
    end = step_reply(observation("Over.", reward=None, done=True))
    assert "null_reward zero" in failure(end, "<answer>a</answer>", kind=EnvironmentFailure)
    with scripted_server(end) as server:
        _, result = asyncio.run(play(make(server, null_reward="zero"), "<answer>a</answer>"))
        assert (result.reward, result.terminated, result.success) == (0.0, True, False)
    with scripted_server(step_reply(observation("More.", reward=None))) as server:
        _, result = asyncio.run(play(make(server), "<answer>a</answer>"))
        assert (result.reward, result.over) == (0.0, False)


HOSTILE = {
    "not json": ("hello", EnvironmentFailure, "not JSON"),
    "deep json": ("[" * 200_000, EnvironmentFailure, "not JSON"),
    "a list": ("[]", EnvironmentFailure, 'instead of an object with "type" and "data"'),
    "other type": ({"type": "state", "data": {}}, EnvironmentFailure, "the type the text 'state'"),
    "no observation": ({"type": "observation", "data": {"reward": 0, "done": False}}, EnvironmentFailure, "is None"),
    "done is text": (observation(done="no"), EnvironmentFailure, "done is the text 'no'"),
    "exception": (error("EXECUTION_ERROR", "KeyError: 'x'"), EnvironmentFailure, "raised: KeyError"),
    "session": (error("SESSION_ERROR", "gone"), InfrastructureFailure, "SESSION_ERROR: gone"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_openenv_client_describes_a_wrong_reply_in_one_line(name: str) -> None:
    reply, kind, expected = HOSTILE[name]
    text = failure(step_reply(reply), "<answer>a</answer>", kind=kind)
    assert expected in text and "\n" not in text and len(text) < 400


def test_openenv_client_bounds_the_size_of_a_message() -> None:
    huge = step_reply(json.dumps(observation("x" * (100 << 20))))
    text = failure(huge, "<answer>a</answer>", kind=InfrastructureFailure)
    assert text == "URL sent a message of more than 16 MiB: raise env.params.max_message_mb."


def test_openenv_client_truncates_long_observations() -> None:
    with scripted_server(step_reply(observation("x" * 50_000 + "\x1b[2J\x00"))) as server:
        _, result = asyncio.run(play(make(server, max_observation=100), "<answer>a</answer>"))
        assert len(result.messages[0].content) < 200 and "characters cut" in result.messages[0].content


def test_openenv_client_bounds_the_time_of_a_reply() -> None:
    async def drip(server: Any, socket: Any, message: Any) -> Any:
        """Send one message in endless fragments."""
        if message["type"] == "reset":
            return observation("Go.")

        async def fragments() -> Any:
            while True:
                yield "{"
                await asyncio.sleep(0.01)

        await socket.send(fragments())
        return None

    text = failure(drip, "<answer>a</answer>", kind=InfrastructureFailure, timeout_s=0.2)
    assert text == "URL did not answer step within 0.2 s: raise env.params.timeout_s if it needs longer."


def test_openenv_client_refuses_messages_that_nobody_asked_for() -> None:
    async def twice(server: Any, socket: Any, message: Any) -> Any:
        for _ in range(2 if message["type"] == "reset" else 1):
            await socket.send(json.dumps(observation("Go.", reward=1.0)))

    with scripted_server(twice) as server:

        async def wait_for_both() -> None:
            runner = make(server)
            try:
                await runner.start()
                await asyncio.sleep(0.2)
                await runner.step(assistant("<answer>a</answer>"))
            finally:
                await runner.close()

        with pytest.raises(InfrastructureFailure, match="sent a message that nobody asked for"):
            asyncio.run(wait_for_both())


def test_openenv_client_retries_a_lost_episode_with_its_seed() -> None:
    def lose_the_first(server: Any, socket: Any, message: Any) -> Any:
        if message["type"] == "step" and server.sessions == 1:
            socket.transport.abort()
            return None
        return echo(server, socket, message)

    with scripted_server(lose_the_first) as server:
        found: list[Exception] = []

        async def attempt(number: int) -> Any:
            return await play(make(server, 3), "<answer>hello</answer>")

        _, result = asyncio.run(run_with_retries(3, attempt, found.append))  # type: ignore[misc]
        assert result.reward == 0.5 and isinstance(found[0], InfrastructureFailure) and len(found) == 1
        assert "closed the connection after 1 replies" in str(found[0])
        first, second = [message["data"] for message in server.messages if message["type"] == "reset"]
        assert first == second


def test_openenv_client_waits_for_a_server_that_restarts(caplog: pytest.LogCaptureFixture) -> None:
    with scripted_server(echo) as server:
        assert make(server).env.facts.name == "scripted"
        server.stop()

        async def start_later() -> Any:
            async def start() -> None:
                await asyncio.sleep(0.1)
                await asyncio.to_thread(server.start)

            (results, _) = await asyncio.gather(play(make(server), "<answer>hi</answer>"), start())
            return results

        with caplog.at_level("INFO", "turnwise"):
            assert asyncio.run(start_later())[1].reward == 0.2
        assert "episodes wait, up to 30 s" in caplog.text and "does not answer" in caplog.text
        server.stop()
        with pytest.raises(InfrastructureFailure, match=r"Waited 0\.01 s for it"):
            asyncio.run(play(make(server, wait_s=0.01)))
        server.start()


def test_openenv_client_waits_for_slots_of_a_full_server() -> None:
    def greet(server: Any, socket: Any, message: Any) -> Any:
        if server.open > 2:
            return error("CAPACITY_REACHED", "full", active_sessions=2, max_sessions=2)
        return None

    async def slow_echo(server: Any, socket: Any, message: Any) -> Any:
        await asyncio.sleep(0.01)
        return echo(server, socket, message)

    with scripted_server(slow_echo, greet=greet) as server:

        async def all_of_them() -> Any:
            return await asyncio.gather(*(play(make(server, i), "<answer>hi</answer>") for i in range(12)))

        assert [results[1].reward for results in asyncio.run(all_of_them())] == [0.2] * 12
        assert server.open == 0
        closes = [message for message in server.messages if message["type"] == "close"]
        assert len(closes) >= 12


def test_openenv_client_reads_why_a_full_server_closed_at_once() -> None:
    async def refuse(server: Any, socket: Any, message: Any) -> Any:
        await socket.send(json.dumps(error("CAPACITY_REACHED", "full", max_sessions=1)))
        await socket.close()

    with scripted_server(echo, greet=refuse) as server:

        async def ask_late() -> None:
            endpoint = endpoint_of(OpenEnv.Params(server=server.url))
            session = Session(endpoint, await connect(endpoint.socket_url))
            await session._socket.wait_closed()
            with pytest.raises(ServerFull, match="full"):
                await session.reset({})
            with pytest.raises(InfrastructureFailure, match="closed the connection"):
                await session.reset({})
            await session.close()

        asyncio.run(ask_late())


def test_openenv_client_releases_its_slot_when_an_episode_is_cancelled() -> None:
    async def hang(server: Any, socket: Any, message: Any) -> Any:
        if message["type"] == "reset":
            return observation("Go.")
        await socket.wait_closed()
        return None

    with scripted_server(hang) as server:

        async def cancel() -> None:
            async with asyncio.timeout(0.3):
                await play(make(server), "<answer>a</answer>")

        with pytest.raises(TimeoutError):
            asyncio.run(cancel())

        async def released() -> None:
            async with asyncio.timeout(20):
                while server.open:
                    await asyncio.sleep(0.01)

        asyncio.run(released())


TOOLS = [{"name": "add", "description": "Add.", "input_schema": {"properties": {"a": {"type": "integer"}}}}]


def tool_server(server: Any, socket: Any, message: Any) -> Any:
    if message["type"] == "reset":
        return observation("Add numbers.", reward=None)
    action = message["data"]
    if action["type"] == "list_tools":
        return observation(tools=TOOLS, reward=None)
    if action["arguments"] == {"a": 13}:
        return observation(error={"error_type": "transport_error", "message": "no route"})
    if action["arguments"] == {"a": "x"}:
        return observation(error={"error_type": "invalid_args", "message": "a is not a number"})
    done = action["arguments"]["a"] == 7
    content = {"content": [{"type": "text", "text": "12"}], "is_error": False}
    return observation(tool_name="add", result=content, reward=float(done), done=done)


def call(**arguments: Any) -> str:
    return f'<tool_call>{{"name": "add", "arguments": {json.dumps(arguments)}}}</tool_call>'


def test_openenv_client_calls_tools() -> None:
    with scripted_server(tool_server, TOOL_ACTION) as server:
        replies = ["7", call(a=1), call(a="x"), call(a=1).replace("add", "sub"), call(a=1) + call(a=7)]
        opening, no_call, called, wrong, unknown, last = asyncio.run(play(make(server), *replies))
        assert [tool.name for tool in opening.tools] == ["add"] and "Add." in opening.tools_in_words
        assert opening.messages[1].content == "Add numbers."
        assert no_call.invalid and no_call.messages[0].content == "No tool call found."
        assert (called.messages[0].role, called.messages[0].content) == ("tool", "12")
        assert wrong.messages[0].content == "Error: a is not a number" and wrong.info["calls"][0]["failed"]
        assert "There is no tool 'sub'" in unknown.messages[0].content
        assert (last.reward, last.terminated, last.success, len(last.messages)) == (1.0, True, True, 2)
        with pytest.raises(InfrastructureFailure, match=r"could not run a tool \(transport_error\): no route"):
            asyncio.run(play(make(server), call(a=13)))


def test_openenv_client_makes_random_calls() -> None:
    with scripted_server(tool_server, TOOL_ACTION) as server:

        async def random_call() -> str:
            runner = make(server, style="answer")
            try:
                opening = await runner.start()
                assert "- add(a?: integer): Add." in opening.messages[0].content and not opening.tools
                return runner.random_answer(random.Random(0))
            finally:
                await runner.close()

        assert re.fullmatch(r'<call>add \{"a": \d+\}</call>', asyncio.run(random_call()))


def test_openenv_client_ends_at_the_limit_of_turns() -> None:
    with scripted_server(tool_server, TOOL_ACTION) as server:
        *_, last = asyncio.run(play(make(server, max_turns=2), call(a=1), call(a=1)))
        assert (last.terminated, last.truncated) == (False, True)


def chat_server(server: Any, socket: Any, message: Any) -> Any:
    if message["type"] == "reset":
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        ]
        return observation(messages=messages, actions=["Up", "Down"])
    metadata = {"success": False, "truncated": True, "invalid": True}
    reply = observation(messages=[{"role": "user", "content": message["data"]["message"]}], reward=1.0, done=True)
    reply["data"]["metadata"] = metadata
    return reply


def test_openenv_client_talks_in_chat() -> None:
    with scripted_server(chat_server) as server:

        async def episode() -> Any:
            runner = make(server)
            try:
                opening = await runner.start()
                reply = runner.random_answer(random.Random(0))
                return opening, reply, await runner.step(assistant(reply))
            finally:
                await runner.close()

        opening, reply, result = asyncio.run(episode())
        assert [(message.role, message.content) for message in opening.messages] == [
            ("system", "Be brief."),
            ("user", "Hi"),
        ]
        assert reply in ("<answer>Up</answer>", "<answer>Down</answer>")
        assert result.messages[0].content == reply and result.reward == 1.0
        assert (result.terminated, result.truncated, result.success, result.invalid) == (False, True, False, True)


def test_openenv_client_refuses_words_in_the_agents_mouth() -> None:
    messages = [{"role": "assistant", "content": "I give up."}]
    with scripted_server(step_reply(observation("Go.", messages=messages))) as server:
        _, result = asyncio.run(play(make(server), "<answer>a</answer>"))
        assert result.messages[0].content == "Go."


def test_openenv_client_sends_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret-token")
    with scripted_server(echo) as server:
        asyncio.run(play(make(server, token_env="MY_TOKEN")))
        assert {headers.get("Authorization") for headers in server.headers} == {"Bearer secret-token"}


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("http://user:pass@host:1", "contains a password"),
        ("ftp://host", "must be a URL such as http://localhost:8000"),
        ("http://127.0.0.1:9", "cannot be reached.*Start the server"),
        ("no-module", "neither a URL"),
        ("/tmp", "has no openenv.yaml"),
    ],
)
def test_openenv_client_explains_a_wrong_server(server: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        SPEC.check_resources(SPEC.check_params({"server": server}))


def test_envs_check_takes_the_url_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "check", "http://127.0.0.1:9"]) == 2
    assert "http://127.0.0.1:9 cannot be reached" in capsys.readouterr().err


def test_openenv_client_explains_a_server_of_another_kind() -> None:
    with scripted_server(echo, action=[]) as server, pytest.raises(UserError, match="is it an OpenEnv server"):  # type: ignore[arg-type]
        facts_of(OpenEnv.Params(server=server.url))
