"""MCP servers over streamable HTTP: keys in headers, network errors, restarts."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from mcp_server_for_tests import HOSTILE, make_server
from mcp_tools_for_tests import open_server
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.messages import ToolCall
from turnwise.tools.mcp.factory import make_mcp_source
from turnwise.tools.toolbox import ToolBox
from work_for_tests import HANG_S

KEY = "sk-canary-over-http"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class FaultyProxy:
    """In front of the server: checks the key and answers with the statuses in `faults`."""

    def __init__(self, app: Any) -> None:
        self.app, self.faults = app, list[int]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        key = dict(scope["headers"]).get(b"authorization", b"").decode()
        status = 401 if key != f"Bearer {KEY}" else self.faults.pop() if self.faults else 200
        if status == 200:
            return await self.app(scope, receive, send)
        await send({"type": "http.response.start", "status": status, "headers": []})
        return await send({"type": "http.response.body", "body": b"no"})


@contextmanager
def serve(port: int, json_response: bool = False) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(make_server().streamable_http_app(json_response=json_response))
    config = uvicorn.Config(proxy, host="127.0.0.1", port=port, log_level="critical", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield proxy
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
def test_http_calls(key: dict[str, str], json_response: bool) -> None:
    async def run(port: int) -> None:
        async with open_server(url_of(port), headers=key, max_output=500) as tools:
            assert (await tools("add", a=2, b=3)).text == "5"
            assert (await tools("say")).text == HOSTILE
            assert (await tools("say", text=f"my key is {KEY}")).text == "my key is ***"
            assert "characters cut" in (await tools("megabyte")).text
            assert (await tools("refuse", why="no")).failed
            texts = await asyncio.gather(*(tools("add", a=number, b=1) for number in range(30)))
            assert [result.text for result in texts] == [str(number + 1) for number in range(30)]

    with serve(port := free_port(), json_response):
        asyncio.run(run(port))


def test_http_missing_key_is_a_user_error_without_keys(key: dict[str, str]) -> None:
    async def run(port: int, **options: Any) -> None:
        async with open_server(url_of(port), **options):
            pass

    with serve(port := free_port()):
        with pytest.raises(UserError, match=r"HTTP status 401: set its key with headers") as error:
            asyncio.run(run(port))
        with pytest.raises(UserError, match=r"401"):
            asyncio.run(run(port, headers={"X-Key": "THE_KEY"}))
    source = make_mcp_source({"mcp": url_of(port), "headers": key})
    assert KEY not in str(error.value) + repr(vars(source))


def test_http_errors_are_retried_for_shared_servers_only(key: dict[str, str]) -> None:
    async def run(port: int, proxy: FaultyProxy) -> None:
        async with open_server(url_of(port), headers=key, shared=True) as tools:
            proxy.faults[:] = [503, 500]
            assert (await tools("add", a=1, b=1)).text == "2"
            assert proxy.faults == []
        async with open_server(url_of(port), headers=key) as tools:
            proxy.faults[:] = [503]
            with pytest.raises(InfrastructureFailure, match="HTTP status 503"):
                await tools("add", a=1, b=1)

    with serve(port := free_port()) as proxy:
        asyncio.run(run(port, proxy))


def test_http_cancelled_call_is_cancelled_at_server(key: dict[str, str]) -> None:
    async def run(port: int) -> None:
        async with open_server(url_of(port), headers=key) as tools:
            cancelled = asyncio.create_task(tools("hang"))
            while (await tools("hung")).text != "1 0":
                await asyncio.sleep(0.01)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            async with asyncio.timeout(HANG_S):
                while (await tools("hung")).text != "1 1":
                    await asyncio.sleep(0.02)

    with serve(port := free_port()):
        asyncio.run(run(port))


def test_http_tool_list_change(key: dict[str, str]) -> None:
    async def run(port: int) -> None:
        async with open_server(url_of(port), headers=key) as tools:
            await tools("learn")
            async with asyncio.timeout(HANG_S):  # the notification may arrive after the answer
                while "plus" not in tools.names:
                    await asyncio.sleep(0.02)

    with serve(port := free_port()):
        asyncio.run(run(port))


def test_http_shared_server_reconnects_after_restart(key: dict[str, str]) -> None:
    port = free_port()
    add = ToolCall(name="add", arguments='{"a": 1, "b": 1}')

    async def run() -> None:
        box = ToolBox([], [make_mcp_source({"mcp": url_of(port), "headers": key, "shared": True, "retries": 1})])
        with serve(port):
            async with box.open(0) as tools:
                assert (await tools.call(add)).text == "2"
        async with box.open(1) as tools:
            with pytest.raises(InfrastructureFailure, match="2 times"):
                await tools.call(add)
            with serve(port):
                assert (await tools.call(add)).text == "2"

    asyncio.run(run())


def test_http_unreachable_server_is_an_infrastructure_failure(key: dict[str, str]) -> None:
    async def run() -> None:
        async with open_server(url_of(free_port()), headers=key):
            pass

    with pytest.raises(InfrastructureFailure, match="ConnectError") as failure:
        asyncio.run(run())
    assert "\n" not in str(failure.value)


def test_http_expired_session_is_renewed(key: dict[str, str]) -> None:
    """In the older protocol a restarted server answers 404 to unknown sessions."""
    port = free_port()
    add = ToolCall(name="add", arguments='{"a": 1, "b": 1}')

    async def run() -> None:
        box = ToolBox([], [make_mcp_source({"mcp": url_of(port), "headers": key, "shared": True, "retries": 1})])
        with serve(port) as proxy:
            proxy.faults[:] = [404]  # the newer protocol's first request is unknown to it
            async with box.open(0) as tools:
                assert (await tools.call(add)).text == "2"
        with serve(port):
            async with box.open(1) as tools:
                assert (await tools.call(add)).text == "2"

    asyncio.run(run())
