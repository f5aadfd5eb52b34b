"""Run tool calls: concurrently, with timeouts, concurrency limits and retries, and cached for pure tools."""

import asyncio
import difflib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from turnwise.concurrency.bounded_cache import BoundedCache, count_values
from turnwise.concurrency.per_loop import PerLoop
from turnwise.core.errors import FOREIGN_ERRORS, InfrastructureFailure, UserError, format_times
from turnwise.core.messages import ToolCall, ToolSpec
from turnwise.text.validation import find_invalid_character
from turnwise.tools.signature import example_arguments, sole_text_argument
from turnwise.tools.tool import (
    OpenTools,
    RemoteToolSource,
    Tool,
    ToolBug,
    ToolError,
    ToolResult,
    ToolSession,
    ToolSource,
)

CACHE_SIZE = 10_000
"""Cached results of pure tools."""
RETRY_DELAY_S = 0.1
"""Delay before the first retry; doubled before each further one."""


class ToolBox:
    """The tools of a run, shared by all of its episodes. `open` opens them for one episode."""

    def __init__(self, tools: Sequence[Tool], sources: Sequence[ToolSource] = ()) -> None:
        self.tools, self._sources = {tool.spec.name: tool for tool in tools}, sources
        check_unique_names([tool.spec.name for tool in tools])
        self._entered = PerLoop(self._enter_loop)

    @asynccontextmanager
    async def open(self, seed: int, state: Any = None) -> AsyncIterator["EpisodeTools"]:
        self._entered.get()
        async with AsyncExitStack() as stack:
            local = {
                name: (tool, await stack.enter_async_context(tool.open(seed, state)))
                for name, tool in self.tools.items()
            }
            sources = [await stack.enter_async_context(source.open_tools(seed, state)) for source in self._sources]
            yield EpisodeTools(self, local, sources)

    def _enter_loop(self) -> None:
        """Discard limits and cached tasks of an earlier event loop: they cannot be awaited in this one."""
        self._limits: dict[str, asyncio.Semaphore] = {}
        self._cache = BoundedCache[asyncio.Task[ToolResult]](count_values, CACHE_SIZE)

    async def run(self, tool: Tool, session: ToolSession, arguments: Mapping[str, Any], key: str) -> ToolResult:
        """Call the tool, or return the cached result for `key` if the tool is pure."""
        if not tool.rules.pure:
            return await self._run_with_retries(tool, session, arguments)
        cache_key = (tool.spec.name, key)
        task = self._cache.get(cache_key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            self._cache.drop(cache_key)
            task = asyncio.ensure_future(self._run_with_retries(tool, session, arguments))
            self._cache.put(cache_key, task)
        return await asyncio.shield(task)  # another episode may be waiting for it

    async def _run_with_retries(self, tool: Tool, session: ToolSession, arguments: Mapping[str, Any]) -> ToolResult:
        """Retry with growing delays. Not `rollout.failures.run_with_retries`, which retries whole episodes at once."""
        rules, name = tool.rules, tool.spec.name
        limit = self._limits.setdefault(name, asyncio.Semaphore(rules.concurrency))
        failure = ""
        for attempt in range(rules.retries + 1):
            if attempt:
                await asyncio.sleep(RETRY_DELAY_S * 2 ** (attempt - 1))
            try:
                async with limit, asyncio.timeout(rules.timeout_s):
                    return await session.call(arguments)
            except ToolError as error:
                return ToolResult(text=str(error), failed=True)
            except (UserError, InfrastructureFailure):
                raise
            except TimeoutError:
                failure = f"took longer than {rules.timeout_s:g} s"
            except ToolBug as error:
                failure = str(error)
            except FOREIGN_ERRORS as error:
                failure = f"{type(error).__name__}: {error}"
        raise InfrastructureFailure(f"the tool {name}: {failure}, {format_times(rules.retries + 1)}")


class EpisodeTools:
    """The tools of one episode, with the sessions that hold their state."""

    def __init__(
        self, box: ToolBox, local: Mapping[str, tuple[Tool, ToolSession]], sources: Sequence[OpenTools] = ()
    ) -> None:
        self._box, self._local, self._sources = box, local, sources
        self._tools()  # raises on duplicate names

    def _tools(self) -> dict[str, tuple[Tool, ToolSession]]:
        """Tools by name, including the current ones of each source."""
        remote = [item for source in self._sources for item in source.tools.items()]
        check_unique_names([*self._local, *(name for name, _ in remote)])
        return dict([*self._local.items(), *remote])

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool, _ in self._tools().values())

    async def run(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool on behalf of the environment or a reward, not of the agent."""
        return await self.call(ToolCall(name=name, arguments=json.dumps(dict(arguments))))

    async def call_all(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run calls concurrently and return results in order. A failure cancels the others: the episode restarts."""
        if len(calls) == 1:
            return [await self.call(calls[0])]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.call(call)) for call in calls]
        except* (InfrastructureFailure, UserError) as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def call(self, call: ToolCall) -> ToolResult:
        tools = self._tools()
        if call.name not in tools:
            return ToolResult(text=describe_unknown_tool(call.name, tools), failed=True)
        tool, session = tools[call.name]
        try:
            arguments = tool.check(read_arguments(call.arguments, tool.spec))
        except ToolError as error:
            return ToolResult(text=f"{call.name}: {error}", failed=True)
        key = json.dumps(arguments, sort_keys=True, default=repr)
        return await self._box.run(tool, session, arguments, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServers:
    """The tool servers of one environment. Implements `NeedsServer`."""

    local_names: Sequence[str]
    """Names of tools that do not come from a server."""
    sources: Sequence[RemoteToolSource]

    async def check_server(self) -> None:
        """Check that all servers work and that no two tools have the same name."""
        remote = await asyncio.gather(*(source.list_tool_names() for source in self.sources))
        check_unique_names([*self.local_names, *(name for names in remote for name in names)])


def check_unique_names(names: Iterable[str]) -> None:
    """Raise UserError if two tools have the same name: the agent could call only one of them."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f'Two tools are called "{name}": rename one with name = "...", or set prefix for a server.')


def describe_unknown_tool(name: str, tools: Iterable[str]) -> str:
    similar = difflib.get_close_matches(name, tools, n=1)
    hint = f"Did you mean {similar[0]}?" if similar else f"There are: {', '.join(tools)}."
    return f"There is no tool {name[:60]!r}. {hint}"


def read_arguments(text: str, spec: ToolSpec) -> dict[str, Any]:
    """Parse the arguments of a call, and check that a server would accept their characters. Raises ToolError."""
    arguments = _parse_arguments(text, spec)
    if (problem := find_invalid_character(arguments)) is not None:  # the agent's mistake, not a failure of the server
        raise ToolError(f"the arguments contain {problem}: remove it")
    return arguments


def _parse_arguments(text: str, spec: ToolSpec) -> dict[str, Any]:
    """Parse the JSON object. If the tool's only required argument is a string, plain text is used as that argument."""
    name = sole_text_argument(spec)
    if name is not None and not text.lstrip().startswith("{"):
        return {name: text}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        example = json.dumps(example_arguments(spec), ensure_ascii=False)
        raise ToolError(f"the arguments are not valid JSON ({str(error)[:80]}): give {example[:200]}") from error
    if not isinstance(value, dict):
        raise ToolError("the arguments must be an object")
    return value
