"""A judge for tests: an HTTP server that answers from a script and fails on request."""

import asyncio
import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.core.trajectory import Group, Status, Stop, Trajectory, Turn
from turnwise.engine.openai.client import CHECK_MESSAGES
from turnwise.rewards.judge.budget import JudgeBudget, JudgeCounts
from turnwise.rewards.judge.client import AnswerCache, JudgeClient
from turnwise.rewards.judge.endpoint import EndpointJudgeModel
from turnwise.rewards.judge.settings import JudgeSettings

Script = Callable[[list[dict[str, Any]]], str]
"""(messages of a request) -> answer of the judge."""
BLOCK = r"<<<BEGIN (\w+) {number}>>>\n(.*?)\n<<<END \1 {number}>>>"


class JudgeServer:
    def __init__(
        self,
        script: Script,
        faults: Sequence[str] = (),
        usage: bool = True,
        wait_s: float = 0.0,
        finish_reason: str = "stop",
    ) -> None:
        """`faults`: failures of the first requests, a status, "429 0.5" with Retry-After, "drop", "late", "html"."""
        self.script, self.usage, self.wait_s, self.finish_reason = script, usage, wait_s, finish_reason
        self.faults = list(faults)
        self.requests: list[dict[str, Any]] = []
        self.checks: list[dict[str, Any]] = []
        """Requests that were sent before a run."""
        self.check_faults: list[str] = []
        self.keys: list[str | None] = []
        self.busy = self.most_busy = 0
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: JudgeServer

    def log_message(self, *given: Any) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        judge = self.server_of
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if request["messages"][0]["content"] == CHECK_MESSAGES[0].content:
            judge.checks.append(request)
            self._respond(judge, request, judge.check_faults.pop(0) if judge.check_faults else "")
            return
        with judge.lock:
            judge.requests.append(request)
            judge.keys.append(self.headers.get("Authorization"))
            fault = judge.faults.pop(0) if judge.faults else ""
            judge.busy += 1
            judge.most_busy = max(judge.most_busy, judge.busy)
        time.sleep(judge.wait_s)
        with judge.lock:
            judge.busy -= 1
        self._respond(judge, request, fault)

    def _respond(self, judge: JudgeServer, request: dict[str, Any], fault: str) -> None:
        if fault == "drop":
            self.close_connection = True
        elif fault == "late":
            self.connection.settimeout(600)
            self.rfile.read(1)
            self.close_connection = True
        elif fault == "html":
            self._send(200, b"<html>busy</html>")
        elif fault:
            status, *after = fault.split(maxsplit=1)
            echoed = json.dumps({"error": {"message": f"refused {self.headers.get('Authorization')}"}}).encode()
            self._send(int(status), echoed, {"Retry-After": after[0]} if after else {})
        else:
            self._send(200, json.dumps(self._answer(judge, request)).encode())

    def _answer(self, judge: JudgeServer, request: dict[str, Any]) -> dict[str, Any]:
        checked = request in judge.checks
        said = {"role": "assistant", "content": "OK" if checked else judge.script(request["messages"])}
        usage = {"usage": {"prompt_tokens": 90, "completion_tokens": 10}} if judge.usage else {}
        return {"choices": [{"message": said, "finish_reason": judge.finish_reason}], **usage}

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *given: Any) -> None:
        """Ignore disconnected clients, which tests cause."""


@contextmanager
def serving(judge: JudgeServer) -> Iterator[str]:
    """Run the server and yield its URL."""
    http = HTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"server_of": judge}))
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1"
    finally:
        http.shutdown()
        http.server_close()


def settings_for(url: str, folder: Path, **options: Any) -> JudgeSettings:
    return JudgeSettings(model="m", rubric="names the capital", endpoint=url, cache=str(folder), **options)


def client_of(settings: JudgeSettings, slept: list[float] | None = None) -> JudgeClient:
    """Return a new client, as in another process, that skips delays."""
    counts = JudgeCounts()

    async def sleep(seconds: float) -> None:
        if slept is not None:
            slept.append(seconds)
        await asyncio.sleep(0)

    budget = JudgeBudget(settings.max_calls, settings.max_tokens_total, counts)
    return JudgeClient(settings, EndpointJudgeModel(settings, budget, sleep), AnswerCache(settings.cache), counts)


def shown(message: dict[str, Any]) -> tuple[str, list[bytes]]:
    """Return the text of a message of a request, and its images."""
    content = message["content"]
    if isinstance(content, str):
        return content, []
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    images = [base64.b64decode(url.removeprefix("data:image/png;base64,"), validate=True) for url in urls]
    return "\n".join(part["text"] for part in content if part["type"] == "text"), images


def fenced(messages: list[dict[str, Any]]) -> tuple[list[tuple[str, str]], str]:
    """Return the fenced texts of a request, and the rest of its user message."""
    numbers = re.findall(r"<<<BEGIN \.\.\. (\w+)>>>", messages[0]["content"])
    block, text = re.compile(BLOCK.format(number=numbers[0]), re.DOTALL), shown(messages[1])[0]
    return block.findall(text), block.sub("", text)


def attempts(messages: list[dict[str, str]]) -> list[str]:
    """Return the agent's text of each attempt, in the order of the request."""
    parts = messages[1]["content"].split("\nAttempt ")[1:]
    return ["\n".join(re.findall(r"<<<BEGIN agent \w+>>>\n(.*?)\n<<<END", part, re.DOTALL)) for part in parts]


def member(*said: str, number: int = 0, prompt: Sequence[int] = (1, 2)) -> Trajectory:
    """Return a trajectory with these answers; all trajectories share their first context."""
    turns = tuple(
        Turn(
            context_ids=tuple(prompt) if place == 0 else (7,),
            extends=place > 0,
            action_ids=(3,),
            action_logprobs=(-0.1,),
            temperature=1.0,
            spans=(),
            message=assistant(text),
            stop=Stop.EOS,
            reward=0.0,
        )
        for place, text in enumerate(said)
    )
    return Trajectory(
        task=Task(env="e", seed=1),
        member=number,
        attempt=0,
        turns=turns,
        status=Status.FAILED,
        turn_rewards=(0.0,) * len(turns),
    )


def group_of(*members: Trajectory) -> Group:
    return Group(task=Task(env="e", seed=1), trajectories=members)


def decode(ids: Sequence[int]) -> str:
    return " ".join(f"word{each}" for each in ids)
