"""Whether what a run rests on is there: asked before anything is spent on it."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class NeedsServer(Protocol):
    """A tool, a group of tools or a judge that asks somebody outside of this process."""

    async def check_server(self) -> None:
        """Once and in bounded time; raises a UserError, with the mend, where nobody answers as it should."""
        ...
