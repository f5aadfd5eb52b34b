"""Runs calls: side by side, in time, within their limits, tried again where that is right, kept where they are pure."""

import asyncio
import difflib
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.core.messages import ToolCall, ToolSpec
from turnwise.tools.tool import Tool, ToolError, ToolResult, ToolSession

KEPT = 10_000
"""Answers of pure tools."""
PAUSE_S = 0.1
"""Before the first retry; doubled before each further one."""


class ToolBox:
    """The tools of a run, shared by all of its episodes. `open` gives an episode its hold on them."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = {tool.spec.name: tool for tool in tools}
        if len(self.tools) < len(tools):
            raise UserError("two tools have the same name: rename one")
        self._limits: dict[str, asyncio.Semaphore] = {}
        self._answers: OrderedDict[tuple[str, str], asyncio.Task[ToolResult]] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self.tools.values())

    @asynccontextmanager
    async def open(self, seed: int, state: Any = None) -> AsyncIterator["ToolHands"]:
        self._settle()
        async with AsyncExitStack() as stack:
            sessions = {
                name: await stack.enter_async_context(tool.open(seed, state)) for name, tool in self.tools.items()
            }
            yield ToolHands(self, sessions)

    def _settle(self) -> None:
        """Limits and answers under way belong to one event loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._limits = {name: asyncio.Semaphore(tool.rules.concurrency) for name, tool in self.tools.items()}
            self._answers.clear()

    async def run(self, tool: Tool, session: ToolSession, arguments: Mapping[str, Any], key: str) -> ToolResult:
        if not tool.rules.pure:
            return await self._tried(tool, session, arguments)
        place = (tool.spec.name, key)
        task = self._answers.get(place)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._answers[place] = asyncio.ensure_future(self._tried(tool, session, arguments))
        self._answers.move_to_end(place)
        while len(self._answers) > KEPT:
            self._answers.popitem(last=False)
        return await asyncio.shield(task)  # another episode may be waiting for it

    async def _tried(self, tool: Tool, session: ToolSession, arguments: Mapping[str, Any]) -> ToolResult:
        rules, name = tool.rules, tool.spec.name
        last = ""
        for attempt in range(rules.retries + 1):
            if attempt:
                await asyncio.sleep(PAUSE_S * 2 ** (attempt - 1))
            try:
                async with self._limits[name], asyncio.timeout(rules.timeout_s):
                    return await session.call(arguments)
            except ToolError as error:
                return ToolResult(text=str(error), failed=True)
            except UserError:
                raise
            except TimeoutError:
                last = f"took longer than {rules.timeout_s:g} s"
            except Exception as error:
                last = f"{type(error).__name__}: {error}"
        raise InfrastructureFailure(f"the tool {name}: {last}, {rules.retries + 1} times")


class ToolHands:
    """One episode's hold on the tools."""

    def __init__(self, box: ToolBox, sessions: Mapping[str, ToolSession]) -> None:
        self._box, self._sessions = box, sessions

    async def call_all(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Side by side, answered in their order. One that breaks ends the others: the episode is run again."""
        if len(calls) == 1:
            return [await self.call(calls[0])]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.call(call)) for call in calls]
        except* (InfrastructureFailure, UserError) as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def call(self, call: ToolCall) -> ToolResult:
        tool = self._box.tools.get(call.name)
        if tool is None:
            return ToolResult(text=self._unknown(call.name), failed=True)
        try:
            arguments = tool.check(_object(call.arguments, tool.spec))
        except ToolError as error:
            return ToolResult(text=f"{call.name}: {error}", failed=True)
        key = json.dumps(arguments, sort_keys=True, default=repr)
        return await self._box.run(tool, self._sessions[call.name], arguments, key)

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._box.tools, n=1)
        mend = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(self._box.tools)}."
        return f"There is no tool {name[:60]!r}. {mend}"


def _object(text: str, spec: ToolSpec) -> dict[str, Any]:
    """The arguments. Of a tool that takes one text and nothing else, that text may stand alone."""
    properties = spec.parameters.get("properties", {})
    if len(properties) == 1 and not text.lstrip().startswith("{"):
        ((name, schema),) = properties.items()
        if schema.get("type") == "string":
            return {name: text}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are no valid JSON: {str(error)[:80]}") from error
    if not isinstance(value, dict):
        raise ToolError("the arguments must be an object")
    return value
