"""An HTTP server with the token-level endpoints of `vllm serve --tokens-only` that fails on request.

Its model returns what a script says for the prompt, the seed and the weights, so that tests know every token.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

Script = Callable[[dict[str, Any]], list[int]]
"""(request) -> tokens to sample, before max_tokens and stop ids."""


class FakeVllm(ThreadingHTTPServer):
    """`requests` are all bodies by path, in order; `weights` are what was loaded."""

    daemon_threads = True

    def __init__(self, script: Script, *, max_model_len: int = 4096, raw_logprobs: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.max_model_len, self.raw_logprobs = script, max_model_len, raw_logprobs
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.weights: dict[str, Tensor] = {}
        self.version = "default"
        self.paused = threading.Event()
        self.aborted: set[str] = set()
        self.missing: set[str] = set()
        """Paths that it does not have."""
        self.dies_in_calls = False
        """True: it closes the connection in the middle of the next answers."""
        self.stopped = False
        self.token_s = 0.0
        """Seconds per streamed token."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for each, body in self.requests if each == path]

    @property
    def generated(self) -> list[dict[str, Any]]:
        """All requests to generate but the probe at the start."""
        bodies = self.bodies("/inference/v1/generate")
        return [body for body in bodies if body["request_id"] != "turnwise-probe"]

    def forget(self) -> None:
        """Like a server that was killed and restarted."""
        self.version, self.weights, self.dies_in_calls = "default", {}, False


class Handler(BaseHTTPRequestHandler):
    server: FakeVllm
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"data": [{"max_model_len": self.server.max_model_len}]})

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        body, (path, _, query) = json.loads(content or b"{}"), self.path.partition("?")
        server = self.server
        server.requests.append((path, body | ({"query": query} if query else {})))
        if server.stopped or (server.dies_in_calls and path == "/inference/v1/generate"):
            self._cut()
        elif path in server.missing:
            self._answer({"detail": "Not Found"}, 404)
        elif path == "/inference/v1/generate":
            self._generate(body)
        else:
            if path == "/update_weights":
                server.weights |= {
                    name: tensor for file in body["update_info"].values() for name, tensor in load_file(file).items()
                }
            elif path == "/finish_weight_update":
                server.version = body["weight_version"]
            elif path == "/abort_requests":
                server.aborted.update(body["request_ids"])
            self._answer({})

    def _generate(self, body: dict[str, Any]) -> None:
        server, params = self.server, body["sampling_params"]
        probe = body["request_id"] == "turnwise-probe"
        tokens = [9] if probe else server.script(body)[: params["max_tokens"]]
        ends = [number for number, token in enumerate(tokens) if token in params["stop_token_ids"]]
        tokens = tokens[: ends[0] + 1] if ends else tokens
        if body["stream"]:
            self._stream(body["request_id"], tokens)
            return
        logprob = -1.5 if probe and server.raw_logprobs else 0.0 if probe else None
        self._answer(self._choice(tokens, True, logprob, total=len(tokens)))

    def _stream(self, request_id: str, tokens: list[int]) -> None:
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        sent = 0
        for token in tokens:
            if f"generate-tokens-{request_id}" in self.server.aborted:
                break
            time.sleep(self.server.token_s)
            self._event(self._choice([token], False, None, total=0))
            sent += 1
        self._event(self._choice([], True, None, total=sent))
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _choice(self, tokens: list[int], finished: bool, logprob: float | None, *, total: int) -> dict[str, Any]:
        rows = [{"logprob": -token / 100 if logprob is None else logprob} for token in tokens]
        spans = [{"version": self.server.version, "start": 0, "end": total}] if finished else None
        finish = "stop" if finished else None
        choice = {"token_ids": tokens, "logprobs": {"content": rows}, "finish_reason": finish, "weight_versions": spans}
        return {"choices": [choice]}

    def _event(self, answer: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(answer)}\n\n".encode())
        self.wfile.flush()

    def _answer(self, body: dict[str, Any], status: int = 200) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _cut(self) -> None:
        """Promise an answer and close the connection."""
        self.send_response(200)
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b"{")
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def fake_vllm(script: Script, **options: Any) -> Iterator[FakeVllm]:
    server = FakeVllm(script, **options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopped = True  # for connections that are still open
        server.shutdown()
        server.server_close()
        thread.join()
