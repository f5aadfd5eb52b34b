"""Requests of sessions, and the protocol of the runners that answer them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.engine.turn import SampledTurn
from turnwise.render.grammar import GrammarMatcher


class SessionSlot(Protocol):
    """State of one session in the runner."""

    @property
    def pending(self) -> list[int]:
        """Context tokens that are not in the cache yet."""
        ...

    def append(self, ids: Sequence[int]) -> None:
        """Add context tokens for the next pass."""
        ...

    def restart(self) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Request(SampledTurn):
    """A turn that a runner samples."""

    slot: Any
    """Slot of the runner that answers."""
    matcher: GrammarMatcher | None = None
    """State of the constraint; None without one."""
    taken: bool = False
    """Whether a pass has started it; else it waits for free memory."""
    began_s: float | None = None
    """Engine time, which advances in passes only, when it was started."""


class PassRunner(Protocol):
    """Answers requests pass by pass, without asyncio."""

    counts: dict[str, int]

    @property
    def capture_s(self) -> float:
        """Seconds spent on capturing graphs so far."""
        ...

    def sleep(self) -> None:
        """Release memory until the next pass. No slot may be claimed."""
        ...

    def finish_pass(self) -> list[Request]:
        """Read the tokens of a started pass and stop sharing cached prefixes, before the weights change.

        Returns the finished requests.
        """
        ...

    def claim(self, address: int) -> Any:
        """Return a slot for a session. The caller ensures that one is free."""
        ...

    def fork(self, slot: Any, address: int, ids: Sequence[int]) -> Any:
        """Return a slot for a session with the context `ids`, the first tokens of the context of `slot`."""
        ...

    def release(self, slot: Any) -> None:
        """Free the slot and drop its running request."""
        ...

    def run_pass(self, arrived: list[Request]) -> list[Request]:
        """Advance all requests, the arrived ones included; mark those it starts; return the finished ones."""
        ...
