"""Servers over streamable HTTP: keys in headers, errors of the network, servers that go and come back."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from mcp_ground_for_tests import opened
from mcp_server_for_tests import HOSTILE, make_server
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.messages import ToolCall
from turnwise.tools.mcp.options import make_mcp_source
from turnwise.tools.toolbox import ToolBox
from work_for_tests import HANG_S

KEY = "sk-canary-over-http"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Door:
    """Before the server: counts, asks for the key, and answers with errors on order."""

    def __init__(self, app: Any) -> None:
        self.app, self.faults, self.requests = app, list[int](), 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        self.requests += 1
        key = dict(scope["headers"]).get(b"authorization", b"").decode()
        status = 401 if key != f"Bearer {KEY}" else self.faults.pop() if self.faults else 200
        if status == 200:
            return await self.app(scope, receive, send)
        await send({"type": "http.response.start", "status": status, "headers": []})
        return await send({"type": "http.response.body", "body": b"no"})


@contextmanager
def serving(port: int, json_response: bool = False) -> Iterator[Door]:
    door = Door(make_server().streamable_http_app(json_response=json_response))
    config = uvicorn.Config(door, host="127.0.0.1", port=port, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield door
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("THE_KEY", KEY)
    return {"Authorization": "THE_KEY"}


def url_of(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"


@pytest.mark.parametrize("json_response", [False, True])
def test_calls_over_http(key: dict[str, str], json_response: bool) -> None:
    async def run(port: int) -> None:
        async with opened(url_of(port), headers=key, max_output=500) as tools:
            assert (await tools("add", a=2, b=3)).text == "5"
            assert (await tools("say")).text == HOSTILE
            assert (await tools("say", text=f"my key is {KEY}")).text == "my key is ***"
            assert "characters cut" in (await tools("megabyte")).text
            assert (await tools("refuse", why="no")).failed
            texts = await asyncio.gather(*(tools("add", a=number, b=1) for number in range(30)))
            assert [result.text for result in texts] == [str(number + 1) for number in range(30)]

    with serving(port := free_port(), json_response):
        asyncio.run(run(port))


def test_a_server_without_its_key_says_what_to_give_and_no_key_is_told(key: dict[str, str]) -> None:
    async def run(port: int, **options: Any) -> None:
        async with opened(url_of(port), **options):
            pass

    with serving(port := free_port()):
        with pytest.raises(UserError, match=r"HTTP status 401: give its key by headers") as told:
            asyncio.run(run(port))
        with pytest.raises(UserError, match=r"401"):
            asyncio.run(run(port, headers={"X-Key": "THE_KEY"}))
    source = make_mcp_source({"mcp": url_of(port), "headers": key})
    assert KEY not in str(told.value) + repr(vars(source))


def test_a_shared_server_that_fails_now_and_then_is_asked_again_and_one_of_ones_own_is_not(
    key: dict[str, str],
) -> None:
    async def run(port: int, door: Door) -> None:
        async with opened(url_of(port), headers=key, shared=True) as tools:
            door.faults[:] = [503, 500]
            assert (await tools("add", a=1, b=1)).text == "2"
            assert door.faults == []
        async with opened(url_of(port), headers=key) as tools:
            door.faults[:] = [503]
            with pytest.raises(InfrastructureFailure, match="HTTP status 503"):
                await tools("add", a=1, b=1)

    with serving(port := free_port()) as door:
        asyncio.run(run(port, door))


def test_a_call_given_up_is_cancelled_at_the_server(key: dict[str, str]) -> None:
    async def run(port: int) -> None:
        async with opened(url_of(port), headers=key) as tools:
            given_up = asyncio.create_task(tools("hang"))
            while (await tools("hung")).text != "1 0":
                await asyncio.sleep(0.01)
            given_up.cancel()
            await asyncio.wait([given_up])
            async with asyncio.timeout(HANG_S):
                while (await tools("hung")).text != "1 1":
                    await asyncio.sleep(0.02)

    with serving(port := free_port()):
        asyncio.run(run(port))


def test_a_changed_list_is_known_over_http_too(key: dict[str, str]) -> None:
    async def run(port: int) -> None:
        async with opened(url_of(port), headers=key) as tools:
            await tools("learn")
            async with asyncio.timeout(HANG_S):  # it comes by a way of its own, perhaps longer than the answer's
                while "plus" not in tools.names:
                    await asyncio.sleep(0.02)

    with serving(port := free_port()):
        asyncio.run(run(port))


def test_a_shared_server_that_went_and_came_back_is_connected_to_again(key: dict[str, str]) -> None:
    port = free_port()
    add = ToolCall(name="add", arguments='{"a": 1, "b": 1}')

    async def run() -> None:
        box = ToolBox([], [make_mcp_source({"mcp": url_of(port), "headers": key, "shared": True, "retries": 1})])
        with serving(port):
            async with box.open(0) as tools:
                assert (await tools.call(add)).text == "2"
        async with box.open(1) as tools:
            with pytest.raises(InfrastructureFailure, match="2 times"):
                await tools.call(add)
            with serving(port):
                assert (await tools.call(add)).text == "2"

    asyncio.run(run())


def test_a_server_that_is_not_there_is_an_infrastructure_failure(key: dict[str, str]) -> None:
    async def run() -> None:
        async with opened(url_of(free_port()), headers=key):
            pass

    with pytest.raises(InfrastructureFailure, match="ConnectError") as failure:
        asyncio.run(run())
    assert "\n" not in str(failure.value)


def test_a_session_that_a_shared_server_has_forgotten_is_begun_again(key: dict[str, str]) -> None:
    """The older protocol has sessions: a server that was started anew answers 404 to those it does not know."""
    port = free_port()
    add = ToolCall(name="add", arguments='{"a": 1, "b": 1}')

    async def run() -> None:
        box = ToolBox([], [make_mcp_source({"mcp": url_of(port), "headers": key, "shared": True, "retries": 1})])
        with serving(port) as door:
            door.faults[:] = [404]  # it does not know the question by which the newer protocol begins
            async with box.open(0) as tools:
                assert (await tools.call(add)).text == "2"
        with serving(port):
            async with box.open(1) as tools:
                assert (await tools.call(add)).text == "2"

    asyncio.run(run())
