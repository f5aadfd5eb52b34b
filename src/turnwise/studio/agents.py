"""Checkpoints that are loaded to play and to chat: each in a process of its own, at most a few, idle ones dropped."""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, Self

from turnwise.core.errors import UserError
from turnwise.files.file_end import read_last_text
from turnwise.studio.agent_requests import AgentCommand, AgentRequest
from turnwise.text.truncation import one_line, shorten

WORKER = (sys.executable, "-m", "turnwise.studio.agent_worker")
MAX_AGENTS = 2
"""Loaded checkpoints, each of which needs the memory of its model."""
IDLE_S = 900.0
"""Seconds without a request of the page after which a checkpoint is dropped."""
CHECK_S = 5.0
CLOSE_S = 2.0
"""Seconds in which a process may end by itself."""
MAX_ANSWER = 64 << 20
"""Bytes of an answer; an environment may show large images."""
MAX_ERROR = 500


class Agent:
    """One loaded checkpoint. Thread-safe."""

    def __init__(self, request: AgentRequest, name: str, worker: Sequence[str]) -> None:
        """`name`: id of the run in the viewed folder."""
        self.id, self.request, self.name = secrets.token_urlsafe(8), request, name
        self._lock, self._changed = Lock(), time.monotonic()
        self._busy, self._version = True, 0
        self._answer: dict[str, Any] = {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._process = subprocess.Popen(
            worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
        )
        self._send(request.model_dump_json())
        Thread(target=self._follow, name=f"agent-{self.id}", daemon=True).start()

    @property
    def idle_s(self) -> float:
        return time.monotonic() - self._changed

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def summary(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "run": self.name,
            "checkpoint": self.request.checkpoint,
            "temperature": self.request.temperature,
            "ended": self.ended,
        }

    def describe(self, after: int) -> dict[str, Any]:
        """Return the state; what the page shows only if it has changed since the version `after`."""
        with self._lock:
            self._changed = time.monotonic()
            state = {**self.summary(), "busy": self._busy, "version": self._version}
            return state if after == self._version else {**state, "answer": self._answer}

    def episode_row(self) -> dict[str, Any]:
        """Return the episode as its row in a run; empty without one."""
        with self._lock:
            return (self._answer.get("episode") or {}).get("row", {})

    def command(self, command: AgentCommand) -> None:
        """Send a command; its result is in a later version. Raises UserError while another one runs."""
        with self._lock:
            if self.ended:
                raise UserError("The checkpoint is no longer loaded. Load it again.")
            if self._busy:
                raise UserError("The checkpoint is busy. Wait for its answer.")
            self._changed, self._busy = time.monotonic(), True
            self._send(command.model_dump_json())

    def close(self) -> None:
        """End the process, and whatever its environments started."""
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _send(self, line: str) -> None:
        if self._process.stdin is None:
            raise RuntimeError("the process has no stdin")
        with suppress(BrokenPipeError):  # it has ended, which `_follow` notices
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _follow(self) -> None:
        """Take over the answers of the process until it ends."""
        output = self._process.stdout
        if output is None:
            raise RuntimeError("the process has no stdout")
        while (line := output.readline(MAX_ANSWER + 1)) and line.endswith(b"\n"):
            with self._lock:
                self._answer, self._busy, self._version = json.loads(line), False, self._version + 1
        if line:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with self._lock:
            if self._busy or "error" not in self._answer:
                self._answer = {**self._answer, "error": self._explain_end(too_long=bool(line))}
            self._busy, self._version = False, self._version + 1

    def _explain_end(self, *, too_long: bool) -> str:
        if too_long:
            return f"An answer had more than {MAX_ANSWER >> 20} MiB. Show smaller images."
        if self._process.returncode == -signal.SIGKILL:
            return "The process of the checkpoint was killed: perhaps memory ran out. Load it again."
        error = read_last_text(self._errors, 16384)
        reason = f"exit status {self._process.returncode}" if error is None else shorten(one_line(error), MAX_ERROR)
        return f"The process of the checkpoint ended ({reason}). Load it again."


class Agents:
    """`with Agents() as agents`: the loaded checkpoints of one studio; all end with it."""

    def __init__(
        self,
        *,
        most: int = MAX_AGENTS,
        idle_s: float = IDLE_S,
        worker: Sequence[str] = WORKER,
        check_s: float = CHECK_S,
    ) -> None:
        self._most, self._idle_s, self._worker, self._check_s = most, idle_s, tuple(worker), check_s
        self._agents: dict[str, Agent] = {}
        self._lock, self._closing = Lock(), Event()
        self._thread = Thread(target=self._drop_idle, name="studio-agents", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closing.set()
        self._thread.join()
        for agent in self.list():
            self.close(agent.id)

    def list(self) -> list[Agent]:
        with self._lock:
            return [*self._agents.values()]

    def load(self, request: AgentRequest, name: str) -> Agent:
        """Start to load a checkpoint. One whose process has ended makes room for it."""
        for agent in self.list():
            if agent.ended:
                self.close(agent.id)
        with self._lock:
            if len(self._agents) >= self._most:
                names = " and ".join(agent.name for agent in self._agents.values())
                raise UserError(f"{len(self._agents)} checkpoints are loaded, of {names}. Close one of them first.")
            agent = Agent(request, name, self._worker)
            self._agents[agent.id] = agent
        return agent

    def find(self, id: str) -> Agent:
        with self._lock:
            agent = self._agents.get(id)
        if agent is None:
            raise UserError("This checkpoint is no longer loaded. Load it again.")
        return agent

    def close(self, id: str) -> None:
        with self._lock:
            agent = self._agents.pop(id, None)
        if agent is not None:
            agent.close()

    def _drop_idle(self) -> None:
        while not self._closing.wait(self._check_s):
            for agent in self.list():
                if agent.idle_s > self._idle_s:
                    self.close(agent.id)
