"""A server of OpenEnv's protocol for one environment of verifiers, on this machine alone and with a key."""

import asyncio
import hmac
import json
import os
import sys
from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from importlib.metadata import version
from types import ModuleType
from typing import Any, Protocol

from aiohttp import WSMsgType, web

from turnwise.envs.adapters.verifiers.host.episode import Episode, EpisodeFailure, Score, Turn, completion, describe
from turnwise.envs.adapters.verifiers.host.locate import LoadFailure, import_environment, wrong_generation

KEY_VARIABLE = "TURNWISE_SERVER_KEY"
NAME = "verifiers"
"""Name of the environment in the routes of tasks."""
MAX_BYTES = 64 << 20
EXECUTION_ERROR, VALIDATION_ERROR, UNKNOWN_TYPE = "EXECUTION_ERROR", "VALIDATION_ERROR", "UNKNOWN_TYPE"
ACTION = {
    "type": "object",
    "properties": {
        "content": {"type": "string", "description": "Text of the reply."},
        "tool_calls": {"type": "array", "items": {"type": "object"}, "description": "Calls: id, name, arguments."},
    },
    "required": ["content"],
    "additionalProperties": False,
}


class Tasks(Protocol):
    """An environment of either generation."""

    @property
    def splits(self) -> Mapping[str, Any]:
        """Tasks by split."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """Type of each split: train, validation or test."""

    def run(self, split: str, index: int, episode: Episode) -> Coroutine[Any, Any, Score]:
        """Play and score a task."""


class Server:
    """The routes. `target` is what the user calls the environment."""

    tasks: Tasks

    def __init__(self, target: str, key: str) -> None:
        self._target, self._key = target, key
        self.episodes: dict[str, Episode] = {}
        """Episodes by the trace whose calls of the model arrive over HTTP."""

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BYTES, middlewares=[self._check_key])
        app.router.add_get("/health", self._health)
        app.router.add_get("/schema", self._schema)
        app.router.add_get("/metadata", self._metadata)
        app.router.add_get("/list_environments", self._list)
        app.router.add_get(f"/{NAME}/splits", self._splits)
        app.router.add_post(f"/{NAME}/num_tasks", self._num_tasks)
        app.router.add_get("/ws", self._socket)
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    @web.middleware
    async def _check_key(self, request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if request.path != "/health" and not hmac.compare_digest(given.encode(), self._key.encode()):
            raise web.HTTPUnauthorized
        response: web.StreamResponse = await handler(request)
        return response

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def _schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": ACTION, "observation": {"type": "object"}, "state": {"type": "object"}})

    async def _metadata(self, request: web.Request) -> web.Response:
        return web.json_response({"name": self._target, "description": "", "version": version("verifiers")})

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response([NAME])

    async def _splits(self, request: web.Request) -> web.Response:
        return web.json_response([{"name": name, "type": self.tasks.kinds[name]} for name in self.tasks.splits])

    async def _num_tasks(self, request: web.Request) -> web.Response:
        split = (await request.json()).get("split")
        if split not in self.tasks.splits:
            raise web.HTTPUnprocessableEntity
        return web.json_response({"num_tasks": len(self.tasks.splits[split])})

    async def _complete(self, request: web.Request) -> web.Response:
        """Answer a call of the model that an episode makes over HTTP."""
        episode = self.episodes.get(request.headers.get("X-Session-ID", ""))
        if episode is None:
            raise web.HTTPNotFound
        body = await request.json()
        if body.get("stream"):
            return web.json_response({"error": {"message": "streaming is not supported"}}, status=400)
        try:
            return web.json_response(completion(await episode.ask(body["messages"], body.get("tools"))))
        except EpisodeFailure as failure:
            return web.json_response({"error": {"message": str(failure)}}, status=400)

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=MAX_BYTES)
        await socket.prepare(request)
        episode: Episode | None = None
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    break
                data = json.loads(message.data)
                if data["type"] == "close":
                    break
                if data["type"] == "reset" and episode is None:
                    episode = Episode()
                await socket.send_json(await self._answer(episode, data))
        finally:
            if episode is not None:
                await episode.close()
                for name in [name for name, other in self.episodes.items() if other is episode]:
                    del self.episodes[name]
        await socket.close()
        return socket

    async def _answer(self, episode: Episode | None, message: Mapping[str, Any]) -> dict[str, Any]:
        kind, data = message["type"], message.get("data") or {}
        try:
            if episode is None or kind not in ("reset", "step"):
                return _error(UNKNOWN_TYPE, f"{kind} is not a message of this state")
            if kind == "step":
                return _observation(await episode.advance(data))
            split, index = data.get("split"), data.get("index")
            if not isinstance(split, str) or split not in self.tasks.splits or not isinstance(index, int):
                return _error(VALIDATION_ERROR, "reset needs a split and an index")
            return _observation(await episode.start(self.tasks.run(split, index, episode)))
        except EpisodeFailure as failure:
            return _error(EXECUTION_ERROR, str(failure))
        except Exception as error:
            return _error(EXECUTION_ERROR, describe(error))


def _observation(turn: Turn) -> dict[str, Any]:
    score = turn.score
    data: dict[str, Any] = {"observation": {"messages": list(turn.messages), "tools": list(turn.tools)}}
    if score is None:
        return {"type": "observation", "data": {**data, "reward": None, "done": False, "metadata": {}}}
    metadata = {"truncated": score.truncated, "rewards": dict(score.parts)}
    return {"type": "observation", "data": {**data, "reward": score.reward, "done": True, "metadata": metadata}}


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message}}


def load(settings: Mapping[str, Any], url: str, episodes: dict[str, Episode]) -> AbstractAsyncContextManager[Tasks]:
    """Load an environment of either generation. Raises LoadFailure."""
    module = import_environment(settings["target"])
    if hasattr(module, "load_environment"):
        return nullcontext(_load_classic(module, settings))
    from turnwise.envs.adapters.verifiers.host.tasksets import open_taskset

    return open_taskset(module, settings["args"], settings["max_turns"], url, episodes)


def _load_classic(module: ModuleType, settings: Mapping[str, Any]) -> Tasks:
    try:
        from turnwise.envs.adapters.verifiers.host.classic import ClassicEnvironment
    except ImportError as error:
        raise wrong_generation(settings["target"], error) from error
    return ClassicEnvironment(module.load_environment(**settings["args"]), settings["max_turns"])


async def serve(settings: Mapping[str, Any], port: int) -> None:
    server = Server(settings["target"], os.environ[KEY_VARIABLE])
    async with AsyncExitStack() as stack:
        try:
            context = load(settings, f"http://127.0.0.1:{port}/v1", server.episodes)
            server.tasks = await stack.enter_async_context(context)
        except LoadFailure as failure:
            sys.exit(str(failure))
        except Exception as error:
            sys.exit(f"{settings['target']} cannot be loaded: {describe(error)}")
        runner = web.AppRunner(server.application(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


def main() -> None:
    asyncio.run(serve(json.loads(sys.argv[1]), int(sys.argv[2])))
