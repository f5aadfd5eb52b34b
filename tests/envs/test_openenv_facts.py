"""What the client of OpenEnv servers asks over HTTP: other versions, endless and slow answers, in one line each."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from turnwise.core.errors import UserError
from turnwise.envs.adapters.openenv.facts import ask_server

SCHEMA = {"action": {"properties": {"message": {"type": "string"}}}}
Answer = Callable[[BaseHTTPRequestHandler], Any]


@contextmanager
def http_server(answers: dict[str, Answer]) -> Iterator[str]:
    """Run a server whose paths have these answers; others do not exist."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path)
            self.send_response(200 if answer else 404)
            self.end_headers()
            try:
                if answer is not None:
                    answer(self)
            except OSError:
                pass  # the client has gone

        def log_message(self, *arguments: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def sends(value: Any) -> Answer:
    return lambda handler: handler.wfile.write(json.dumps(value).encode())


def endless(handler: BaseHTTPRequestHandler) -> None:
    while True:
        handler.wfile.write(b" " * 65_536)


def slow(handler: BaseHTTPRequestHandler) -> None:
    while True:
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.02)


@pytest.mark.parametrize("version", ["1.0.0", "1.9", "0.1.0", "next", 1, None])
def test_openenv_facts_accept_the_known_version(version: Any) -> None:
    with http_server({"/schema": sends(SCHEMA), "/openapi.json": sends({"info": {"version": version}})}) as url:
        assert ask_server(url, None, {}).action == SCHEMA["action"]


def test_openenv_facts_refuse_a_later_version_in_one_line() -> None:
    with http_server({"/schema": sends(SCHEMA), "/openapi.json": sends({"info": {"version": "2.1.0"}})}) as url:
        with pytest.raises(
            UserError, match=r"has version 2\.1\.0 of OpenEnv's interface, and turnwise knows"
        ) as caught:
            ask_server(url, None, {})
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("answer", [endless, slow])
def test_openenv_facts_bound_an_answer_in_size_and_time(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.envs.adapters.openenv.facts.TIMEOUT_S", 20.0 if answer is endless else 0.5)
    with http_server({"/schema": answer}) as url:
        with pytest.raises(UserError, match=r"/schema answers with more than 4 MiB or") as caught:
            ask_server(url, None, {})
        assert "\n" not in str(caught.value)
