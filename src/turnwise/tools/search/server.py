"""HTTP server for an index that several runs share: POST /search {"queries": [...], "top": 3}.

The standard library's server is fast enough, since a client sends the queries of all its episodes in one request.
"""

import hmac
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.core.errors import UserError
from turnwise.network.http_headers import bearer_token, host_name, is_local
from turnwise.network.ports import check_port, listen
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
"""Idle connections are closed after this time."""
MAX_CONNECTIONS = 256
MIN_KEY_CHARS = 8


class SearchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    queries: Annotated[list[Annotated[str, Field(max_length=MAX_QUERY_CHARS)]], Field(max_length=MAX_QUERIES)]
    top: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = 3


class RequestRefused(Exception):
    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    wbufsize = -1  # one packet for headers and body, to avoid a 40 ms wait for the acknowledgement
    disable_nagle_algorithm = True

    def __init__(self, *arguments: Any, searcher: Searcher, key: str | None, local: bool) -> None:
        self._searcher, self._key, self._local = searcher, key, local
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self.close_connection = True
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, {"error": f"POST {PATH}"})

    def do_POST(self) -> None:
        try:
            answer = self._answer()
        except RequestRefused as error:
            self.close_connection = True  # the rest of the request is not read
            self._send(error.status, {"error": str(error)})
        except OSError:  # the client disconnected, or sends too slowly
            self.close_connection = True
        except Exception as error:
            self.close_connection = True
            self.server.log(f"a search failed: {type(error).__name__}: {error}")  # type: ignore[attr-defined]
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the search failed"})
        else:
            self._send(HTTPStatus.OK, answer)

    def _answer(self) -> dict[str, Any]:
        self._check_access()
        request = self._read_request()
        rankings = self._searcher.search(request.queries, request.top)
        return {"results": [[_to_row(result) for result in results] for results in rankings]}

    def _check_access(self) -> None:
        """Check the key first, so that clients without one learn nothing else."""
        token = bearer_token({"authorization": self.headers.get("Authorization", "")}) or ""
        if self._key is not None and not hmac.compare_digest(token.encode(), self._key.encode()):
            raise RequestRefused(HTTPStatus.UNAUTHORIZED, "this server requires a key")
        if self._local and not is_local(host_name(self.headers.get("Host", ""))):
            raise RequestRefused(HTTPStatus.FORBIDDEN, "unknown host name")  # DNS rebinding by a web page
        if self.path.rstrip("/") != PATH:
            raise RequestRefused(HTTPStatus.NOT_FOUND, f"use POST {PATH}")
        if self.headers.get_content_type() != "application/json":  # web pages of other sites cannot send it
            raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")

    def _read_request(self) -> SearchRequest:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise RequestRefused(HTTPStatus.LENGTH_REQUIRED, "send Content-Length")
        if len(length) > 12 or int(length) > MAX_REQUEST_BYTES:
            raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MAX_REQUEST_BYTES} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise ConnectionError("the request is incomplete")
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
        """Log nothing: queries and keys are private."""


class SearchServer(ThreadingHTTPServer):
    """`with SearchServer(index, ...) as server: server.serve_forever()`."""

    daemon_threads = True

    def __init__(
        self,
        searcher: Searcher,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`key`: required from clients, and mandatory unless `host` is local. `port` 0: any free port."""
        _check_options(host, port, key)
        self.log, self._free = log, BoundedSemaphore(MAX_CONNECTIONS)
        handler = partial(_Handler, searcher=searcher, key=key, local=is_local(host))
        super().__init__((host, port), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listen(host, port)
        self.server_address = self.socket.getsockname()

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
        """Ignore clients that disconnect."""


def _check_options(host: str, port: int, key: str | None) -> None:
    check_port(port)
    if key is None and not is_local(host):
        raise UserError(f"host {host} is reachable by others: set a key first: `export {KEY_VARIABLE}=KEY`.")
    if key is not None and len(key) < MIN_KEY_CHARS:
        raise UserError(f"The key in {KEY_VARIABLE} is too short: use at least {MIN_KEY_CHARS} characters.")


def _to_row(result: SearchResult) -> dict[str, Any]:
    passage = result.passage
    return {"title": passage.title, "text": passage.text, "id": passage.id, "score": result.score}
