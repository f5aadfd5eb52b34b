"""Protocols and types of tools: rules for running them, results, per-episode sessions."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field

from turnwise.core.messages import ImagePart, ToolSpec
from turnwise.settings.section import Positive


class ToolError(Exception):
    """A mistake of the agent. The agent sees the message and the episode continues."""


class ToolBug(Exception):
    """The tool's own code failed, through no fault of the agent. The message is one line: location and error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules:
    """Limits and retries of a tool's calls."""

    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Per call. A timeout is not the agent's fault: the call is retried, then the episode."""
    concurrency: Positive = 64
    """Simultaneous calls over all episodes."""
    retries: Annotated[int, Field(ge=0)] = 2
    """Retries after a failure that is not the agent's fault. Use 0 for calls that must not run twice."""
    pure: bool = False
    """Equal arguments give equal results in every episode: results are cached and concurrent calls are shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """Result of a tool call, for tools that return more than a text."""

    text: str
    """Shown to the agent."""
    images: tuple[ImagePart, ...] = ()
    """Shown after the text: `tw.Image` objects."""
    failed: bool = False
    """The agent made a mistake."""
    reward: float = 0.0
    """Reward of this call, if the tool assigns one; part of the process rewards."""
    over: bool = False
    """The call ends the episode, for example by submitting an answer."""
    success: bool = False
    """With `over`: the episode ends in success."""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"text is a value of type {type(self.text).__name__}: give a str")
        images = self.images if isinstance(self.images, tuple | list) else (None,)
        if not all(isinstance(image, ImagePart) for image in images):
            raise TypeError("images is not a tuple of tw.Image: give images=(tw.Image(image),)")


class ToolSession(Protocol):
    """One episode's session with a tool, including its state."""

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Run the tool with validated arguments. Raises ToolError for the agent's mistakes, anything for failures."""
        ...


class Tool(Protocol):
    """A tool known before any episode starts."""

    @property
    def spec(self) -> ToolSpec:
        """Name, description and JSON schema of the arguments, as the model sees them."""
        ...

    @property
    def rules(self) -> ToolRules:
        """Limits and retries of its calls."""
        ...

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validate the arguments and return them as the tool expects them. Raises ToolError."""
        ...

    def open(self, seed: int, state: Any) -> AbstractAsyncContextManager[ToolSession]:
        """Open a session. `seed` belongs to the episode; `state` is shared by the environment and its tools."""
        ...


class OpenTools(Protocol):
    """Tools of one source, opened for one episode."""

    @property
    def tools(self) -> Mapping[str, tuple[Tool, ToolSession]]:
        """Tools by name. A server may change its list between two turns."""
        ...


class ToolSource(Protocol):
    """Source of tools that are known only when an episode starts, such as those of a server."""

    def open_tools(self, seed: int, state: Any) -> AbstractAsyncContextManager[OpenTools]:
        """Open the source for one episode. Raises InfrastructureFailure if it is unavailable."""
        ...


@runtime_checkable
class RemoteToolSource(Protocol):
    """Tool source outside of this process."""

    async def list_tool_names(self) -> Sequence[str]:
        """Names of the tools that an episode would get. Raises UserError if the source is unavailable."""
        ...


@runtime_checkable
class NeedsServer(Protocol):
    """Tool, group of tools or judge that depends on a server."""

    async def check_server(self) -> None:
        """Check once, in bounded time, that the server works. Raises UserError with a fix if it does not."""
        ...
