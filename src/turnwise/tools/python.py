"""The tool `python`: code in the sandbox, stateful within an episode."""

import asyncio
import atexit
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from turnwise.core.messages import ToolSpec
from turnwise.sandbox.host import Sandbox, Session
from turnwise.sandbox.types import RunResult, SandboxLimits
from turnwise.tools.tool import ToolError, ToolResult, ToolRules

__all__ = ["PythonTool", "SandboxLimits"]

SPEC = ToolSpec(
    name="python",
    description="Runs Python code and shows what it prints. Variables stay from call to call.",
    parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)
GRACE_S = 30.0
"""What a call may take besides its own limit before it counts as our failure: starting the interpreter is in it."""
NOTHING_SHOWN = "(no output: print what you want to see)"


class PythonTool:
    """One sandbox for all episodes, started at the first call."""

    spec = SPEC

    def __init__(self, limits: SandboxLimits, *, concurrency: int = 64) -> None:
        self.rules = ToolRules(timeout_s=limits.timeout_s + GRACE_S, concurrency=concurrency, retries=1)
        self._limits = limits
        self._box: Sandbox | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if arguments.keys() != {"code"} or not isinstance(arguments["code"], str):
            raise ToolError('python takes one argument, "code", a text')
        return {"code": arguments["code"]}

    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator["PythonSession"]:
        session = PythonSession(self, seed)
        try:
            yield session
        finally:
            session.close()

    async def session(self, seed: int) -> Session:
        return (await self._sandbox()).session(seed)

    async def _sandbox(self) -> Sandbox:
        """That of this event loop: one of a loop that has ended serves nobody any more."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self.kill()
            self._loop, self._starting = loop, asyncio.Lock()
        async with self._starting:
            if self._box is None:
                self._box = await Sandbox.start(self._limits)
                atexit.register(self._box.kill)
            return self._box

    def kill(self) -> None:
        if self._box is not None:
            atexit.unregister(self._box.kill)
            self._box.kill()
            self._box = None


@dataclass(slots=True)
class PythonSession:
    tool: PythonTool
    seed: int
    session: Session | None = None

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        if self.session is None:
            self.session = await self.tool.session(self.seed)
        result = await self.session.run(arguments["code"])
        return ToolResult(text=format_output(result), failed=result.ended != "ok")

    def close(self) -> None:
        if self.session is not None:
            self.session.close()


def format_output(result: RunResult) -> str:
    """What the agent sees: output, then the value of a last expression or what went wrong."""
    parts = [result.output.rstrip("\n"), result.value or "", result.error or ""]
    return "\n".join(part for part in parts if part) or NOTHING_SHOWN
