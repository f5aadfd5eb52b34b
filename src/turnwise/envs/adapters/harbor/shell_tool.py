"""The tool `shell`: run a command in the episode's shell."""

import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.core.messages import ToolSpec
from turnwise.sandbox.shell import ShellResult
from turnwise.tools.tool import ToolError, ToolResult, ToolRules

SPEC = ToolSpec(
    name="shell",
    description="Runs a bash command and shows its output. The folder and files stay from call to call.",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)
MAX_COMMAND = 100_000
"""Characters of the longest command: the kernel limits an argument to 128 KiB."""
GRACE_S = 60.0
"""Added to each command's time limit for the timeout of its call, since a killed session is replaced."""
NO_OUTPUT = "(no output)"


class AgentShell(Protocol):
    """A shell in the sandbox or in a container."""

    async def run(
        self, command: str, *, timeout_s: float, env: Mapping[str, str] | None = None, max_chars: int = 16_000
    ) -> ShellResult:
        """Run a command in the folder where the last one ended."""

    def close(self) -> Awaitable[None] | None:
        """End all processes. A container takes a while."""


class ShellState(Protocol):
    """The part of an environment that the tool uses."""

    shell: AgentShell | None
    seconds_left: float
    commands: list[str]


class ShellTool:
    """Commands of one episode run one after another, in its shell."""

    spec = SPEC

    def __init__(self, *, timeout_s: float, max_chars: int, max_calls: int) -> None:
        self.timeout_s = timeout_s
        self.max_chars = max_chars
        # all calls of an episode may be in one reply, in which each waits for those before it
        self.rules = ToolRules(timeout_s=(timeout_s + GRACE_S) * max_calls, concurrency=4096, retries=0)

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if arguments.keys() != {"command"} or not isinstance(arguments["command"], str):
            raise ToolError('shell takes one argument, "command", a string')
        if len(arguments["command"].encode("utf-8", "replace")) > MAX_COMMAND:
            raise ToolError(f"the command has more than {MAX_COMMAND} bytes: write files in parts")
        return dict(arguments)

    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator["ShellCalls"]:
        yield ShellCalls(self, state)


@dataclass(slots=True)
class ShellCalls:
    tool: ShellTool
    env: ShellState

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        if self.env.shell is None:
            raise RuntimeError("a command before reset")
        if self.env.seconds_left <= 0:
            raise ToolError("the task's time for commands is used up: answer now")
        command, limit = arguments["command"], min(self.tool.timeout_s, self.env.seconds_left)
        self.env.commands.append(command)
        began = time.monotonic()
        try:
            result = await self.env.shell.run(command, timeout_s=limit, max_chars=self.tool.max_chars)
        finally:
            self.env.seconds_left -= time.monotonic() - began
        return ToolResult(text=format_result(result, limit), failed=bool(result.exit_code))


def format_result(result: ShellResult, limit_s: float) -> str:
    """Return what the agent sees of a command."""
    if result.lost:
        return f"[the machine was killed and starts again, without your changes: {result.lost}]"
    notes = [result.output.rstrip("\n")]
    if result.timed_out:
        notes.append(f"[stopped: the time limit is {limit_s:.3g} s]")
    elif result.exit_code:
        notes.append(f"[exit code {result.exit_code}]")
    return "\n".join(note for note in notes if note) or NO_OUTPUT
