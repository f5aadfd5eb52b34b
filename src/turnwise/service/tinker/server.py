"""The HTTP server of Tinker's API: keys, bodies, routes and replies."""

import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from turnwise.core.errors import UserError
from turnwise.gateway.chat import GatewayError
from turnwise.gateway.http_server import LocalServer, server_config
from turnwise.gateway.request_body import BodyReader, parse_json
from turnwise.network.http_headers import bearer_token
from turnwise.network.ports import listen
from turnwise.service.openenv.access import AccessGuard
from turnwise.service.tinker import bodies
from turnwise.service.tinker.errors import ApiError
from turnwise.service.tinker.sampling import SampleRequest
from turnwise.service.tinker.service import Json, Service
from turnwise.service.tinker.store import Result

PROTOBUF = "application/x-protobuf"
PREFIX = "/api/v1"
CLIENT_CONFIG: Json = {
    "parallel_fwdbwd_chunks": False,
    "proto_compress_fwdbwd": False,
    "use_pyqwest_transport": True,
    "create_model_via_load_weights": True,
    "sample_use_retrieve_futures": False,
    "custom_loss_server_side": False,
    "sample_join_sampling_session": True,
}
"""What the SDK may use of this server."""
NOT_OFFERED = {
    "create_custom_loss": "forward_backward_custom computes losses in the client",
    "copy_weights": "load the weights of a path instead",
    "retrieve_futures": "retrieve results one by one",
}
"""Route -> what to do instead."""

log = logging.getLogger("turnwise")

Handler = Callable[[Request, str], Awaitable[Response]]
"""(request, owner) -> response"""


class TinkerServer:
    """`async with TinkerServer(service, keys) as server` serves at `server.url` in the current event loop.

    `keys`: API key of each tenant, by the tenant's name.
    """

    def __init__(self, service: Service, keys: Mapping[str, str], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._service, self._keys, self._host, self._port = service, dict(keys), host, port
        self._bodies = BodyReader()

    async def __aenter__(self) -> "TinkerServer":
        listener = listen(self._host, self._port)
        await self._service.__aenter__()
        app = AccessGuard(self.make_app(), self._host, None)
        self._server = LocalServer(server_config(app))
        await self._server.start(listener)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.close()
        await self._service.__aexit__(*error)

    @property
    def url(self) -> str:
        return self._server.url

    def make_app(self) -> Starlette:
        service = self._service
        posts: dict[str, Handler] = {
            "client/config": self._constant(CLIENT_CONFIG),
            "telemetry": self._constant({"status": "accepted"}),
            "create_session": self._call(bodies.CreateSession, service.create_session),
            "session_heartbeat": self._call(bodies.SessionBody, service.heartbeat),
            "sessions/{session}/finish": self._finish_session,
            "create_model": self._call(bodies.CreateModel, service.create_model),
            "unload_model": self._call(bodies.ModelBody, service.unload),
            "get_info": self._call(bodies.ModelBody, service.describe_model),
            "forward_backward": self._forward_backward,
            "forward": self._forward_backward,
            "optim_step": self._submit(bodies.OptimStep),
            "save_weights": self._submit(bodies.SaveWeights),
            "save_weights_for_sampler": self._submit(bodies.SaveForSampler),
            "save_weights_external": self._submit(bodies.SaveExternal),
            "load_weights": self._call(bodies.LoadWeights, service.load_weights),
            "weights_info": self._call(bodies.WeightsInfoBody, service.weights_info),
            "create_sampling_session": self._call(bodies.CreateSamplingSession, service.create_sampler),
            "join_sampling_session": self._call(bodies.SamplingSessionBody, service.join_sampler),
            "asample": self._sample,
            "cancel_future": self._constant({}),
            "retrieve_future": self._retrieve,
        }
        gets: dict[str, Handler] = {
            "get_server_capabilities": self._capabilities,
            "samplers/{sampler}": self._describe_sampler,
            "training_runs": self._list_runs,
            "training_runs/{model}": self._describe_run,
            "training_runs/{model}/checkpoints": self._list_checkpoints,
            "training_runs/{model}/checkpoints/{checkpoint:path}/external_weights_urls": self._sign_files,
        }
        routes = [
            Route(f"{PREFIX}/healthz", _answer_health, methods=["GET"]),
            Route(f"{PREFIX}/files", self._send_file, methods=["GET"]),
        ]
        routes += [self._route(path, "POST", handler) for path, handler in posts.items()]
        routes += [self._route(path, "GET", handler) for path, handler in gets.items()]
        path = "training_runs/{model}/checkpoints/{checkpoint:path}"
        routes.append(self._route(path, "DELETE", self._delete_checkpoint))
        return Starlette(routes=routes, exception_handlers={HTTPException: _refuse_route})

    def _route(self, path: str, method: str, handle: Handler) -> Route:
        async def answer(request: Request) -> Response:
            try:
                return await handle(request, self._owner(request))
            except ApiError as error:
                return JSONResponse({"detail": str(error)}, status_code=error.status)
            except GatewayError as error:
                return JSONResponse({"detail": str(error)}, status_code=error.status)
            except UserError as error:
                return JSONResponse({"detail": str(error)}, status_code=400)

        return Route(f"{PREFIX}/{path}", answer, methods=[method])

    def _owner(self, request: Request) -> str:
        """Return the tenant of a request's key. Raises ApiError. Every key is compared, in constant time."""
        given = (request.headers.get("x-api-key") or bearer_token(request.headers) or "").encode()
        owners = [name for name, key in self._keys.items() if hmac.compare_digest(key.encode(), given)]
        if not owners:
            raise ApiError(401, "The API key is wrong: set TINKER_API_KEY to the one that the server printed.")
        return owners[0]

    async def _json(self, request: Request) -> dict[str, Any]:
        async with self._bodies.read(request) as body:
            return parse_json(body or b"{}")

    def _constant(self, reply: Json) -> Handler:
        async def answer(request: Request, owner: str) -> Response:
            async with self._bodies.read(request):
                return JSONResponse(reply)

        return answer

    def _call(self, kind: type[Any], call: Callable[[str, Any], Json]) -> Handler:
        async def answer(request: Request, owner: str) -> Response:
            return JSONResponse(call(owner, bodies.read_body(kind, await self._json(request))))

        return answer

    def _submit(self, kind: type[bodies.ModelRequest]) -> Handler:
        """Return the handler of a request that runs in the order of its model's `seq_id`."""

        async def answer(request: Request, owner: str) -> Response:
            body = bodies.read_body(kind, await self._json(request))
            name, raw = request.url.path.rpartition("/")[2], body.model_dump_json().encode()
            return JSONResponse(self._service.submit(owner, body.model_id, body.seq_id, name, raw))

        return answer

    async def _forward_backward(self, request: Request, owner: str) -> Response:
        content_type, encoding = request.headers.get("content-type", ""), request.headers.get("content-encoding")
        async with self._bodies.read(request) as body:
            if not content_type.startswith(PROTOBUF) or encoding is not None:
                raise ApiError(415, f"forward_backward takes {PROTOBUF}, not compressed: use Tinker's SDK 0.36.")
            return JSONResponse(self._service.forward_backward(owner, bytes(body)))

    async def _sample(self, request: Request, owner: str) -> Response:
        body = bodies.read_body(SampleRequest, await self._json(request))
        return JSONResponse(self._service.sample(owner, body, body.model_dump_json().encode()))

    async def _retrieve(self, request: Request, owner: str) -> Response:
        body = bodies.read_body(bodies.RetrieveFuture, await self._json(request))
        result = await self._service.retrieve(owner, body)
        if result is None:
            waiting = {"type": "try_again", "request_id": body.request_id, "queue_state": "active"}
            return JSONResponse(waiting, status_code=408)
        return _respond(result)

    async def _finish_session(self, request: Request, owner: str) -> Response:
        bodies.read_body(bodies.FinishSession, await self._json(request))
        return JSONResponse(self._service.finish_session(owner, request.path_params["session"]))

    async def _capabilities(self, request: Request, owner: str) -> Response:
        return JSONResponse(self._service.capabilities())

    async def _describe_sampler(self, request: Request, owner: str) -> Response:
        return JSONResponse(self._service.describe_sampler(owner, request.path_params["sampler"]))

    async def _list_runs(self, request: Request, owner: str) -> Response:
        numbers = {"limit": 20, "offset": 0}
        for name in numbers:
            text = request.query_params.get(name, "")
            numbers[name] = min(int(text), 1000) if text.isdecimal() and len(text) < 10 else numbers[name]
        return JSONResponse(self._service.training_runs(owner, numbers["limit"], numbers["offset"]))

    async def _describe_run(self, request: Request, owner: str) -> Response:
        return JSONResponse(self._service.training_run(owner, request.path_params["model"]))

    async def _sign_files(self, request: Request, owner: str) -> Response:
        path = f"tinker://{request.path_params['model']}/{request.path_params['checkpoint']}"
        address = f"{request.url.scheme}://{request.url.netloc}{PREFIX}/files"
        return JSONResponse(self._service.sign_files(owner, path, address))

    async def _send_file(self, request: Request) -> Response:
        """Send a file of a signed address, which takes the place of a key."""
        try:
            return FileResponse(self._service.downloads.find(request.query_params))
        except ApiError as error:
            return JSONResponse({"detail": str(error)}, status_code=error.status)

    async def _list_checkpoints(self, request: Request, owner: str) -> Response:
        return JSONResponse(self._service.checkpoints(owner, request.path_params["model"]))

    async def _delete_checkpoint(self, request: Request, owner: str) -> Response:
        parameters = request.path_params
        return JSONResponse(self._service.delete_checkpoint(owner, parameters["model"], parameters["checkpoint"]))


def _respond(result: Result) -> Response:
    media_type = PROTOBUF if result.kind == "proto" else "application/json"
    return Response(result.body, media_type=media_type)


async def _answer_health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _refuse_route(request: Request, error: Exception) -> Response:
    """Name the call that is not offered. The SDK tolerates 404 where it can do without."""
    assert isinstance(error, HTTPException)
    name = request.url.path.removeprefix(f"{PREFIX}/")[:100]
    instead = NOT_OFFERED.get(name, "docs/tinker.md lists what is")
    detail = f"{request.method} {name} is not offered by turnwise: {instead}."
    return Response(json.dumps({"detail": detail}), status_code=404, media_type="application/json")
