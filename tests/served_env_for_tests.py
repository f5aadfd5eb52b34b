"""An environment served in the event loop of a test, and raw clients of it."""

import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
from websockets.asyncio.client import ClientConnection, connect

from turnwise.envs.registry import load_spec
from turnwise.envs.spec import EnvSpec
from turnwise.service.openenv.served_env import ActionForm, ServedEnv
from turnwise.service.openenv.server import EnvServer, ServerLimits


@asynccontextmanager
async def serving(
    spec: str | EnvSpec,
    params: dict[str, Any] | None = None,
    *,
    actions: ActionForm = "auto",
    token: str | None = None,
    **limits: Any,
) -> AsyncIterator[EnvServer]:
    spec = load_spec(spec) if isinstance(spec, str) else spec
    served = ServedEnv(spec=spec, params=spec.check_params(params or {}), actions=actions)
    async with EnvServer(served, limits=ServerLimits(**limits), token=token) as server:
        yield server


class RawClient:
    """A WebSocket whose messages a test writes."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def ask(self, kind: str, data: Any = None) -> dict[str, Any]:
        return await self.ask_text(json.dumps({"type": kind} if data is None else {"type": kind, "data": data}))

    async def ask_text(self, text: str | bytes) -> dict[str, Any]:
        await self.socket.send(text)
        return await self.read()

    async def read(self) -> dict[str, Any]:
        reply: dict[str, Any] = json.loads(await self.socket.recv())
        return reply


@asynccontextmanager
async def raw_client(server: EnvServer, path: str = "/ws", **options: Any) -> AsyncIterator[RawClient]:
    url = server.url.replace("http", "ws") + path
    async with connect(url, proxy=None, compression=None, max_size=None, **options) as socket:
        yield RawClient(socket)


async def request(server: EnvServer, method: str, path: str, body: Any = None, **options: Any) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        return await http.request(method, server.url + path, json=body, **options)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@contextmanager
def serving_in_thread(spec: str | EnvSpec, params: dict[str, Any] | None = None, **limits: Any) -> Iterator[EnvServer]:
    """Serve from a thread, for code that has an event loop of its own or blocks."""
    started = queue.Queue[tuple[EnvServer, asyncio.Event, asyncio.AbstractEventLoop]]()

    async def run() -> None:
        async with serving(spec, params, **limits) as server:
            stop = asyncio.Event()
            started.put((server, stop, asyncio.get_running_loop()))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    server, stop, loop = started.get(timeout=60)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
