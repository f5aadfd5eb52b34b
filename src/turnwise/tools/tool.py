"""A tool: what the model is told of it, the rules by which it runs, and one episode's hold on it."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field

from turnwise.config.section import Positive
from turnwise.core.messages import ToolSpec


class ToolError(Exception):
    """The agent's own mistake: its text is what the agent sees, and the episode goes on."""


class ToolBug(Exception):
    """A tool's own code broke, which is nothing that the agent did: where, and what, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules:
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Of one call. It is our time-out, not the agent's fault: the call is tried again, then the episode is."""
    concurrency: Positive = 64
    """Calls at the same time, over all episodes."""
    retries: Annotated[int, Field(ge=0)] = 2
    """After a failure that is not the agent's. 0 for what must not happen twice."""
    pure: bool = False
    """Equal arguments give equal answers, whoever asks: answers are kept, and calls under way are shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    text: str
    """What the agent sees."""
    failed: bool = False
    """Through the agent's own fault."""
    reward: float = 0.0
    """Of this call alone, where the tool judges it; part of the process rewards."""
    over: bool = False
    """The call ends the episode, as handing work in does."""
    success: bool = False
    """With `over`: it ends well."""


class ToolSession(Protocol):
    """One episode's hold on a tool, with its state."""

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """`arguments` were checked. Raises ToolError, or whatever broke."""
        ...


class Tool(Protocol):
    """One tool, known before any episode starts."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def rules(self) -> ToolRules: ...

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the tool takes them; a ToolError says in a few words what is wrong."""
        ...

    def open(self, seed: int, state: Any) -> AbstractAsyncContextManager[ToolSession]:
        """`seed`: the episode's own; `state`: what its environment shares with its tools, or None."""
        ...


class OpenTools(Protocol):
    """One episode's tools of a source."""

    @property
    def tools(self) -> Mapping[str, tuple[Tool, ToolSession]]:
        """By name, as they are now: a server may change its list between two turns."""
        ...


class ToolSource(Protocol):
    """Gives an episode tools that are known only when it starts, as those of a server are."""

    def open_tools(self, seed: int, state: Any) -> AbstractAsyncContextManager[OpenTools]:
        """Raises InfrastructureFailure where they cannot be had."""
        ...


@runtime_checkable
class NeedsServer(Protocol):
    """A tool, a group of tools or a judge that asks somebody outside of this process."""

    async def check_server(self) -> None:
        """Once and in bounded time; raises a UserError, with the mend, where nobody answers as it should."""
        ...
