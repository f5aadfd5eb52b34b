"""Runs calls: side by side, in time, within their limits, tried again where that is right, kept where they are pure."""

import asyncio
import difflib
import json
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from turnwise.core.errors import FOREIGN_ERRORS, InfrastructureFailure, UserError, times
from turnwise.core.messages import ToolCall, ToolSpec
from turnwise.core.text_validation import broken_in
from turnwise.tools.signature import example_arguments
from turnwise.tools.tool import OpenTools, Tool, ToolBug, ToolError, ToolResult, ToolSession, ToolSource

CACHE_SIZE = 10_000
"""Answers of pure tools."""
RETRY_DELAY_S = 0.1
"""Before the first retry; doubled before each further one."""


class ToolBox:
    """The tools of a run, shared by all of its episodes. `open` gives an episode its hold on them."""

    def __init__(self, tools: Sequence[Tool], sources: Sequence[ToolSource] = ()) -> None:
        self.tools, self._sources = {tool.spec.name: tool for tool in tools}, sources
        check_unique_names([tool.spec.name for tool in tools])
        self._limits: dict[str, asyncio.Semaphore] = {}
        self._answers: OrderedDict[tuple[str, str], asyncio.Task[ToolResult]] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def open(self, seed: int, state: Any = None) -> AsyncIterator["EpisodeTools"]:
        self._settle()
        async with AsyncExitStack() as stack:
            own = {
                name: (tool, await stack.enter_async_context(tool.open(seed, state)))
                for name, tool in self.tools.items()
            }
            others = [await stack.enter_async_context(source.open_tools(seed, state)) for source in self._sources]
            yield EpisodeTools(self, own, others)

    def _settle(self) -> None:
        """Limits and answers under way belong to one event loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._limits = {}
            self._answers.clear()

    async def run(self, tool: Tool, session: ToolSession, arguments: Mapping[str, Any], key: str) -> ToolResult:
        if not tool.rules.pure:
            return await self._tried(tool, session, arguments)
        place = (tool.spec.name, key)
        task = self._answers.get(place)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._answers[place] = asyncio.ensure_future(self._tried(tool, session, arguments))
        self._answers.move_to_end(place)
        while len(self._answers) > CACHE_SIZE:
            self._answers.popitem(last=False)
        return await asyncio.shield(task)  # another episode may be waiting for it

    async def _tried(self, tool: Tool, session: ToolSession, arguments: Mapping[str, Any]) -> ToolResult:
        rules, name = tool.rules, tool.spec.name
        limit = self._limits.setdefault(name, asyncio.Semaphore(rules.concurrency))
        last = ""
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
                last = f"took longer than {rules.timeout_s:g} s"
            except ToolBug as error:
                last = str(error)
            except FOREIGN_ERRORS as error:
                last = f"{type(error).__name__}: {error}"
        raise InfrastructureFailure(f"the tool {name}: {last}, {times(rules.retries + 1)}")


class EpisodeTools:
    """One episode's hold on the tools."""

    def __init__(
        self, box: ToolBox, own: Mapping[str, tuple[Tool, ToolSession]], others: Sequence[OpenTools] = ()
    ) -> None:
        self._box, self._own, self._others = box, own, others
        self._tools()  # names that clash are told at the start

    def _tools(self) -> dict[str, tuple[Tool, ToolSession]]:
        """By name, as they are now."""
        served = [each for source in self._others for each in source.tools.items()]
        check_unique_names([*self._own, *(name for name, _ in served)])
        return dict([*self._own.items(), *served])

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool, _ in self._tools().values())

    async def run(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """A call that is not the agent's, as of a reward that checks an answer by doing."""
        return await self.call(ToolCall(name=name, arguments=json.dumps(dict(arguments))))

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
        tools = self._tools()
        if call.name not in tools:
            return ToolResult(text=_unknown(call.name, tools), failed=True)
        tool, session = tools[call.name]
        try:
            arguments = tool.check(_whole(_object(call.arguments, tool.spec)))
        except ToolError as error:
            return ToolResult(text=f"{call.name}: {error}", failed=True)
        key = json.dumps(arguments, sort_keys=True, default=repr)
        return await self._box.run(tool, session, arguments, key)


def check_unique_names(names: Iterable[str]) -> None:
    """Two tools of one name: whichever the agent means, one of them cannot be called."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f'two tools are called "{name}": rename one, with name in a table, or prefix of a server')


def _unknown(name: str, tools: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, tools, n=1)
    mend = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(tools)}."
    return f"There is no tool {name[:60]!r}. {mend}"


def sole_text_argument(spec: ToolSpec) -> str | None:
    """The name of a tool's only argument that must be given, if that is a text."""
    properties, required = spec.parameters.get("properties", {}), spec.parameters.get("required", [])
    names = required or list(properties)
    is_text = len(names) == 1 and properties.get(names[0], {}).get("type") == "string"
    return names[0] if is_text else None


def _object(text: str, spec: ToolSpec) -> dict[str, Any]:
    """The arguments. Of a tool that must be given one text and nothing else, that text may stand alone."""
    name = sole_text_argument(spec)
    if name is not None and not text.lstrip().startswith("{"):
        return {name: text}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        example = json.dumps(example_arguments(spec), ensure_ascii=False)
        raise ToolError(f"the arguments are no valid JSON ({str(error)[:80]}): give {example[:200]}") from error
    if not isinstance(value, dict):
        raise ToolError("the arguments must be an object")
    return value


def _whole(arguments: dict[str, Any]) -> dict[str, Any]:
    """What no server could be sent is the agent's mistake, and told before anything is sent."""
    if (broken := broken_in(arguments)) is not None:
        raise ToolError(f"the arguments hold {broken}: leave it out")
    return arguments


@runtime_checkable
class RemoteToolSource(Protocol):
    """A source of tools that asks somebody outside of this process for them."""

    async def list_tool_names(self) -> Sequence[str]:
        """Of the tools that it would give an episode; a UserError, with the mend, where it would give none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServers:
    """A `NeedsServer`: all servers of one environment are there, and no two tools have one name."""

    local_names: Sequence[str]
    """Names of the tools that no server gives."""
    sources: Sequence[RemoteToolSource]

    async def check_server(self) -> None:
        served = await asyncio.gather(*(source.list_tool_names() for source in self.sources))
        check_unique_names([*self.local_names, *(name for names in served for name in names)])
