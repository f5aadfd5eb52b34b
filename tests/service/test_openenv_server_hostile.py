"""The OpenEnv server under hostile clients and environments: everything is bounded, and the other sessions go on."""

import asyncio
import json
import os
import random
import socket
import struct
import time
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from served_env_for_tests import RawClient, raw_client, request, serving, until
from turnwise.envs.registry import spec_of
from turnwise.envs.text_env import Outcome, TextEnv, goes_on


class Hang(TextEnv):
    """Wait."""

    async def reset(self, rng: random.Random) -> str:
        return "Wait."

    async def step(self, action: str) -> Outcome:
        if action == "forever":
            await asyncio.Event().wait()
        if action == "busy":
            while True:
                time.sleep(0.001)
        return goes_on("Done.")


SPEC = spec_of(Hang)


def act(name: str) -> dict[str, Any]:
    return {"message": f"<answer>{name}</answer>"}


async def is_served(server: Any) -> None:
    async with raw_client(server) as client:
        assert (await client.ask("reset", {}))["type"] == "observation"
        assert (await client.ask("step", act("go")))["data"]["observation"]["messages"][0]["content"] == "Done."


async def closed_with(client: RawClient) -> int | None:
    with pytest.raises(ConnectionClosed) as closed:
        async with asyncio.timeout(20):
            while True:
                await client.read()
    return None if closed.value.rcvd is None else closed.value.rcvd.code


def test_openenv_server_bounds_the_size_of_a_message() -> None:
    async def send() -> None:
        async with serving(SPEC) as server:
            async with raw_client(server) as client:
                await client.ask("reset", {})
                with pytest.raises(ConnectionClosed):
                    await client.socket.send("x" * (100 << 20))
                    await client.read()
                assert await closed_with(client) == 1009
            big = await request(server, "POST", "/reset", {"seed": 1, "text": "x" * (5 << 20)})
            assert big.status_code == 413 and "send less" in big.json()["detail"]
            await until(lambda: len(server.sessions) == 0)
            await is_served(server)

    asyncio.run(send())


@pytest.mark.parametrize("fragment", ["", "x" * 4096])
def test_openenv_server_bounds_endless_fragments(fragment: str) -> None:
    async def endless(server: Any) -> None:
        async with raw_client(server) as client:

            async def fragments() -> Any:
                while True:
                    yield fragment
                    await asyncio.sleep(0)

            with pytest.raises(ConnectionClosed):
                await client.socket.send(fragments())
            assert await closed_with(client) == 1009

    async def send() -> None:
        async with serving(SPEC) as server:
            async with asyncio.timeout(60):
                await endless(server)
            await until(lambda: len(server.sessions) == 0)

    asyncio.run(send())


@pytest.mark.parametrize(
    "text",
    ["hello", "[]", "[" * 100_000, '{"type": "reset", "data": {"seed": 1e999}}', b"\xff\xfe", '{"a": "\\ud800"}'],
)
def test_openenv_server_survives_a_message_that_is_not_an_object(text: str | bytes) -> None:
    async def send() -> None:
        async with serving(SPEC) as server, raw_client(server) as client:
            wrong = await client.ask_text(text)
            assert wrong["data"]["code"] == "INVALID_JSON" and "\n" not in wrong["data"]["message"]
            assert (await client.ask("reset", {}))["type"] == "observation"

    asyncio.run(send())


def test_openenv_server_refuses_more_sessions_than_it_has() -> None:
    async def fill() -> None:
        async with serving(SPEC, sessions=2) as server:
            async with raw_client(server) as first, raw_client(server) as second:
                await first.ask("reset", {})
                await second.ask("reset", {})
                async with raw_client(server) as third:
                    full = await third.read()
                    assert full["data"]["code"] == "CAPACITY_REACHED"
                    assert (full["data"]["active_sessions"], full["data"]["max_sessions"]) == (2, 2)
                assert (await request(server, "POST", "/reset", {})).status_code == 503
                assert (await first.ask("state"))["type"] == "state"
            await until(lambda: len(server.sessions) == 0)
            await is_served(server)

    asyncio.run(fill())


def test_openenv_server_drops_idle_sessions() -> None:
    async def idle() -> None:
        async with serving(SPEC, idle_s=0.2) as server:
            create = {"jsonrpc": "2.0", "method": "openenv/session/create"}
            assert "session_id" in (await request(server, "POST", "/mcp", create)).json()["result"]
            async with raw_client(server) as client:
                await client.ask("reset", {})
                idle = await client.read()
                assert idle["data"]["message"] == "The session was idle for more than 0.2 s."
                assert await closed_with(client) == 1000
            await until(lambda: len(server.sessions) == 0)

    asyncio.run(idle())


def test_openenv_server_gives_a_session_to_one_socket() -> None:
    async def replay() -> None:
        async with serving(SPEC) as server:
            create = {"jsonrpc": "2.0", "method": "openenv/session/create"}
            session = (await request(server, "POST", "/mcp", create)).json()["result"]["session_id"]
            path = f"/ws?session_id={session}"
            async with raw_client(server, path) as client:
                await client.ask("reset", {})
                async with raw_client(server, path) as thief:
                    assert "already has a WebSocket" in (await thief.read())["data"]["message"]
                assert (await client.ask("step", act("go")))["type"] == "observation"
            await until(lambda: not server.sessions.find(session).attached)
            close = {"jsonrpc": "2.0", "method": "openenv/session/close", "params": {"session_id": session}}
            assert (await request(server, "POST", "/mcp", close)).json()["result"]["closed"]
            for wrong in (path, "/ws?session_id=guess", "/ws?session_id="):
                async with raw_client(server, wrong) as late:
                    assert (await late.read())["data"]["code"] == "SESSION_ERROR"

    asyncio.run(replay())


def test_openenv_server_cuts_clients_that_are_slow_with_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.gateway.http_server.HEADER_TIMEOUT_S", 0.2)
    monkeypatch.setattr("turnwise.gateway.request_body.READ_TIMEOUT_S", 0.2)

    async def slow(server: Any, head: bytes) -> bytes:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head)
        answer = await asyncio.wait_for(reader.read(65_536), 20)
        writer.close()
        return answer

    async def connect() -> None:
        async with serving(SPEC) as server, raw_client(server) as client:
            await client.ask("reset", {})
            assert await slow(server, b"GET /health HTTP/1.1\r\nHost: loc") == b""
            body = b"POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
            assert b" 408 " in await slow(server, body)
            await asyncio.sleep(0.4)
            assert (await client.ask("step", act("go")))["type"] == "observation"  # a socket is not a slow request

    asyncio.run(connect())


def test_openenv_server_cuts_clients_that_ping_and_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.service.openenv.socket.MAX_UNREAD_BYTES", 10_000)

    async def flood() -> None:
        async with serving(SPEC) as server:
            host, port = server.url.removeprefix("http://").split(":")
            raw = socket.create_connection((host, int(port)))
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(
                raw,
                b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
            )
            ping = struct.pack("!BB", 0x89, 0x80 | 125) + b"\0\0\0\0" + os.urandom(125)
            await until(lambda: len(server.sessions) == 1)
            with pytest.raises(OSError):
                async with asyncio.timeout(60):
                    while True:
                        await loop.sock_sendall(raw, ping * 100)
            raw.close()
            await until(lambda: len(server.sessions) == 0)
            await is_served(server)

    asyncio.run(flood())


@pytest.mark.parametrize("action", ["forever", "busy"])
def test_openenv_server_bounds_the_time_of_a_step(action: str) -> None:
    async def hang() -> None:
        async with serving(SPEC, step_s=0.3) as server, raw_client(server) as client:
            await client.ask("reset", {})
            late = await client.ask("step", act(action))
            assert late["data"]["code"] == "SESSION_ERROR" and "--step-seconds" in late["data"]["message"]
            assert "call reset" in (await client.ask("step", act("go")))["data"]["message"]
            await is_served(server)

    asyncio.run(hang())


def test_openenv_server_releases_sessions_whose_clients_vanish() -> None:
    async def vanish() -> None:
        async with serving(SPEC, step_s=0.5) as server:
            for step in (None, act("forever")):
                async with raw_client(server) as client:
                    await client.ask("reset", {})
                    if step is not None:
                        await client.socket.send(json.dumps({"type": "step", "data": step}))
                    client.socket.transport.abort()
            await until(lambda: len(server.sessions) == 0)

    asyncio.run(vanish())


def test_openenv_server_has_hundreds_of_sessions() -> None:
    async def crowd() -> None:
        async with serving(SPEC) as server:
            await asyncio.gather(*(is_served(server) for _ in range(200)))
            assert len(server.sessions) == 0

    asyncio.run(crowd())
