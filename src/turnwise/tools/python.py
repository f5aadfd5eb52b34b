"""The tool `python`: run code in the sandbox. Variables persist within an episode."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from turnwise.core.messages import ToolSpec
from turnwise.sandbox.host import SandboxSession
from turnwise.sandbox.shared import SharedSandbox
from turnwise.sandbox.types import RunResult, SandboxLimits
from turnwise.tools.tool import ToolError, ToolResult, ToolRules

__all__ = ["PythonTool", "SandboxLimits"]

SPEC = ToolSpec(
    name="python",
    description="Runs Python code and shows what it prints. Variables stay from call to call.",
    parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)
GRACE_S = 30.0
"""Added to the code's time limit for the call's timeout, since starting the interpreter takes time."""
NO_OUTPUT = "(no output: print what you want to see)"


class PythonTool:
    """One sandbox shared by all episodes, started by the first call."""

    spec = SPEC

    def __init__(self, limits: SandboxLimits, *, concurrency: int = 64) -> None:
        self.rules = ToolRules(timeout_s=limits.timeout_s + GRACE_S, concurrency=concurrency, retries=1)
        self._sandbox = SharedSandbox(limits)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if arguments.keys() != {"code"} or not isinstance(arguments["code"], str):
            raise ToolError('python takes one argument, "code", a string')
        return {"code": arguments["code"]}

    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator["PythonSession"]:
        session = PythonSession(self, seed)
        try:
            yield session
        finally:
            session.close()

    async def session(self, seed: int) -> SandboxSession:
        return await self._sandbox.session(seed)


@dataclass(slots=True)
class PythonSession:
    tool: PythonTool
    seed: int
    session: SandboxSession | None = None

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        if self.session is None:
            self.session = await self.tool.session(self.seed)
        result = await self.session.run(arguments["code"])
        return ToolResult(text=format_output(result), failed=result.status != "ok")

    def close(self) -> None:
        if self.session is not None:
            self.session.close()


def format_output(result: RunResult) -> str:
    """Output, then the value of the last expression or the error, as shown to the agent."""
    parts = [result.output.rstrip("\n"), result.value or "", result.error or ""]
    return "\n".join(part for part in parts if part) or NO_OUTPUT
