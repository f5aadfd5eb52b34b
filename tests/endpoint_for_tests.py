"""An HTTP server that answers like a chat endpoint and fails on request."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from turnwise.engine.openai.client import CHECK_MESSAGES

ENV = '''
import turnwise as tw

class Sums(tw.TextEnv):
    """Add one to the number, twice."""
    max_turns = 3
    def reset(self, rng):
        self.number, self.left = rng.randint(0, 10**9), 2
        return f"number {self.number}"
    def step(self, action):
        if int(action) != self.number + 1: return tw.lost("wrong")
        self.number, self.left = self.number + 1, self.left - 1
        return tw.won("done") if not self.left else tw.goes_on(f"number {self.number}")
'''
"""A start is a number of nine digits, by which the server distinguishes the tasks."""

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""(request) -> body of the response."""
Fault = str
"""A status with its headers, as "429 retry-after=0.01", or "cut", "cut body", "late", "garbage", "empty"."""


def write_env(folder: Path) -> str:
    """Return the environment's file for `turnwise eval`."""
    (folder / "sums.py").write_text(ENV)
    return f"{folder / 'sums.py'}:Sums"


def numbers(request: dict[str, Any]) -> list[int]:
    """Return all numbers that the environment showed; the first one identifies the task."""
    shown = [message["content"] for message in request["messages"] if message["role"] == "user"]
    return [int(text.split()[-1]) for text in shown]


def completion(text: str, *, finish: str = "stop") -> dict[str, Any]:
    return {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 5},
    }


def adds_one(request: dict[str, Any]) -> dict[str, Any]:
    """Answer correctly, except in the second turn of tasks whose number is a multiple of three."""
    said = numbers(request)
    wrong = said[0] % 3 == 0 and len(said) == 2
    return completion(f"<think>easy</think><answer>{said[-1] + (2 if wrong else 1)}</answer>")


class Refusal(Exception):
    """A status other than 200, with its JSON body; raised by an `Answer`."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
        self.status, self.body = status, json.dumps({"error": error}).encode()


class ReasoningModel:
    """Answers as gpt-5-mini and the o-series do: same errors, and reasoning counts against the token budget."""

    def __init__(self, answer: Answer = adds_one, *, reasoning: int = 700, most: int = 128_000) -> None:
        self.answer, self.reasoning, self.most = answer, reasoning, most

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["model"] != "gpt-5-mini":
            raise Refusal(404, f"The model `{request['model']}` does not exist.", code="model_not_found")
        if "max_tokens" in request:
            what = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
            raise Refusal(400, f"Unsupported parameter: {what}", "max_tokens", "unsupported_parameter")
        if request.get("temperature", 1) != 1:
            what = f"'temperature' does not support {request['temperature']} with this model."
            text = f"Unsupported value: {what} Only the default (1) value is supported."
            raise Refusal(400, text, "temperature", "unsupported_value")
        for name in ("top_p", "stop"):
            if name in request:
                text = f"Unsupported parameter: '{name}' is not supported with this model."
                raise Refusal(400, text, name, "unsupported_parameter")
        if "top_k" in request:
            raise Refusal(400, "Unrecognized request argument supplied: top_k")
        budget = request["max_completion_tokens"]
        if budget > self.most:
            raise Refusal(400, f"max_tokens is too large: {budget}.", "max_tokens", "invalid_value")
        used = min(budget, self.reasoning)
        answer = completion("", finish="length") if budget <= self.reasoning else self.answer(request)
        details = {"completion_tokens_details": {"reasoning_tokens": used}}
        return answer | {"usage": {"prompt_tokens": 20, "completion_tokens": used + 5, **details}}


class Server:
    def __init__(
        self,
        answer: Answer = adds_one,
        faults: Callable[[list[int]], list[Fault]] = lambda said: [],
        check: Answer = lambda request: completion("OK"),
    ) -> None:
        """`faults`: what a request meets, one after the other, before it is answered; by the numbers that it shows.

        `check`: answers the request that is sent before a run.
        """
        self.answer, self.faults, self.check = answer, faults, check
        self.checks: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.answered: Counter[tuple[int, ...]] = Counter()
        """Number of good answers, by the numbers that were shown."""
        self.met: Counter[Fault] = Counter()
        self.busy = self.most_busy = 0
        self.hold = threading.Event()
        self.hold.set()
        """No request is answered while it is cleared."""
        self._met: dict[tuple[int, ...], int] = {}
        self._lock = threading.Lock()

    def settle(self) -> None:
        """Wait until no request is being answered, including those of disconnected clients."""
        while self.busy:
            time.sleep(0.01)

    def next_fault(self, said: list[int]) -> Fault | None:
        with self._lock:
            number = self._met.get(tuple(said), 0)
            faults = self.faults(said)
            self._met[tuple(said)] = number + 1
            if number >= len(faults):
                return None
            self.met[faults[number]] += 1
            return faults[number]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    scripted: Server

    def log_message(self, *given: Any) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        server = self.scripted
        with server._lock:
            server.busy += 1
            server.most_busy = max(server.most_busy, server.busy)
        try:
            self._answer(server)
        finally:
            with server._lock:
                server.busy -= 1

    def _answer(self, server: Server) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if request["messages"][0]["content"] == CHECK_MESSAGES[0].content:
            server.checks.append(request)
            self._send(*_answer(server.check, request))
            return
        server.requests.append(request)
        server.keys.append(self.headers.get("Authorization"))
        server.hold.wait(600)
        said = numbers(request) if "number" in request["messages"][-1]["content"] else []
        fault = server.next_fault(said)
        if fault is not None:
            self._fail(fault)
            return
        status, body = _answer(server.answer, request)
        with server._lock:
            server.answered[tuple(said)] += status == 200
        self._send(status, body)

    def _fail(self, fault: Fault) -> None:
        if fault == "cut":
            self.close_connection = True
        elif fault == "cut body":
            self._send(200, b'{"choices": [', length=500)
            self.close_connection = True
        elif fault == "late":
            self.connection.settimeout(600)
            self.rfile.read(1)  # until the client has had enough
            self.close_connection = True
        elif fault == "garbage":
            self._send(200, b"<html>\xff{{{ busy")
        elif fault == "empty":
            self._send(200, b'{"error": {"message": "overloaded"}}')
        else:
            status, *headers = fault.split(" ", 1)
            text = dict(part.split("=", 1) for part in headers[0].split(";")) if headers else {}
            body = text.pop("body", '{"error": {"message": "not now"}}')
            self._send(int(status), body.encode(), headers=text)

    def _send(
        self, status: int, body: bytes, *, length: int | None = None, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length or len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _answer(answer: Answer, request: dict[str, Any]) -> tuple[int, bytes]:
    try:
        return 200, json.dumps(answer(request)).encode()
    except Refusal as refusal:
        return refusal.status, refusal.body


@contextmanager
def serving(server: Server) -> Iterator[str]:
    """Run the server and yield its URL."""
    handler = type("Bound", (Handler,), {"scripted": server})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.daemon_threads = True
    http.handle_error = lambda *given: None  # type: ignore[method-assign]  # a client that goes away is what is tested
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1"
    finally:
        server.hold.set()
        http.shutdown()
        http.server_close()
