"""The tools of servers beside those that are known: asked for before a run starts."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from turnwise.tools.box import check_names


@runtime_checkable
class Serves(Protocol):
    """A source of tools that asks somebody outside of this process for them."""

    async def served_names(self) -> Sequence[str]:
        """Of the tools that it would give an episode; a UserError, with the mend, where it would give none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTools:
    """A `NeedsServer`: all servers of one environment are there, and no two tools have one name."""

    known: Sequence[str]
    """Names of the tools that no server gives."""
    sources: Sequence[Serves]

    async def check_server(self) -> None:
        served = await asyncio.gather(*(source.served_names() for source in self.sources))
        check_names([*self.known, *(name for names in served for name in names)])
