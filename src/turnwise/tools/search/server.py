"""A server over an index, for runs that share one: POST /search {"queries": [...], "top": 3}.

The standard library's server is enough: a client sends the queries of all its episodes in one request.
"""

import hmac
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.config.secrets import is_local
from turnwise.core.errors import UserError
from turnwise.tools.search.remote import PATH
from turnwise.tools.search.types import (
    KEY_VARIABLE,
    MAX_QUERIES,
    MAX_QUERY_CHARS,
    MAX_REQUEST_BYTES,
    MAX_RESULTS,
    Searcher,
    SearchResult,
)

IDLE_S = 60.0
"""A connection that says nothing for so long is closed."""
MOST_CONNECTIONS = 256
SHORTEST_KEY = 8


class SearchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    queries: Annotated[list[Annotated[str, Field(max_length=MAX_QUERY_CHARS)]], Field(max_length=MAX_QUERIES)]
    top: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = 3


class RequestRefused(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    wbufsize = -1  # headers and body together, or the client's acknowledgement of the first is waited for, 40 ms
    disable_nagle_algorithm = True

    def __init__(self, *given: Any, searcher: Searcher, key: str | None, local: bool) -> None:
        self._searcher, self._key, self._local = searcher, key, local
        super().__init__(*given)

    def do_GET(self) -> None:
        self.close_connection = True
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, {"error": f"POST {PATH}"})

    def do_POST(self) -> None:
        try:
            answer = self._answer()
        except RequestRefused as error:
            self.close_connection = True  # what is left of the request is not read
            self._send(error.status, {"error": str(error)})
        except OSError:  # who asked went away, or sends too slowly
            self.close_connection = True
        except Exception as error:
            self.close_connection = True
            self.server.say(f"a search failed: {type(error).__name__}: {error}")  # type: ignore[attr-defined]
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the search failed"})
        else:
            self._send(HTTPStatus.OK, answer)

    def _answer(self) -> dict[str, Any]:
        self._admit()
        asked = self._asked()
        found = self._searcher.search(asked.queries, asked.top)
        return {"results": [[_row(hit) for hit in hits] for hits in found]}

    def _admit(self) -> None:
        """The key first: who has none learns nothing else."""
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        if self._key is not None and not (
            kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._key.encode())
        ):
            raise RequestRefused(HTTPStatus.UNAUTHORIZED, "this server wants its key")
        if self._local and not is_local(_host_name(self.headers.get("Host", ""))):
            raise RequestRefused(
                HTTPStatus.FORBIDDEN, "this server does not go by that name"
            )  # a page that was led here
        if self.path.rstrip("/") != PATH:
            raise RequestRefused(HTTPStatus.NOT_FOUND, f"there is nothing but POST {PATH}")
        if self.headers.get_content_type() != "application/json":  # which a page of another site cannot send
            raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")

    def _asked(self) -> SearchRequest:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise RequestRefused(HTTPStatus.LENGTH_REQUIRED, "say Content-Length")
        if len(length) > 12 or int(length) > MAX_REQUEST_BYTES:
            raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MAX_REQUEST_BYTES} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise ConnectionError("the request was cut")
        try:
            return SearchRequest.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            raise RequestRefused(
                HTTPStatus.BAD_REQUEST, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            ) from error

    def _send(self, status: HTTPStatus, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode("ascii")
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

    def version_string(self) -> str:
        return "turnwise"

    def log_message(self, format: str, *args: Any) -> None:
        """Neither queries nor keys are logged."""


class SearchServer(ThreadingHTTPServer):
    """`with SearchServer(index, ...) as server: server.serve_forever()`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        searcher: Searcher,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`key`: what clients must send; on an address that others reach, one is needed. `port` 0: any that is free."""
        _check(host, port, key)
        self.say, self._free = say, BoundedSemaphore(MOST_CONNECTIONS)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self.address_family = family
            super().__init__((host, port), partial(_Handler, searcher=searcher, key=key, local=is_local(host)))
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no address"
            raise UserError(
                f"cannot listen on {host} port {port} ({reason}): choose another --host or --port"
            ) from error

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        name = host.decode() if isinstance(host, bytes | bytearray) else str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no event."""


def _check(host: str, port: int, key: str | None) -> None:
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} is no port: give one from 1024 to 65535, or 0 for any that is free")
    if key is None and not is_local(host):
        raise UserError(f"--host {host} lets others in: set a key first, export {KEY_VARIABLE}=KEY")
    if key is not None and len(key) < SHORTEST_KEY:
        raise UserError(f"the key in {KEY_VARIABLE} is too short to be one: give {SHORTEST_KEY} characters or more")


def _host_name(host: str) -> str:
    """Of a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _row(hit: SearchResult) -> dict[str, Any]:
    passage = hit.passage
    return {"title": passage.title, "text": passage.text, "id": passage.id, "score": hit.score}
