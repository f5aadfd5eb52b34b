"""Requests of sessions, and the protocol of the runners that answer them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from turnwise.core.protocols import Sampling
from turnwise.core.trajectory import Stop


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


@dataclass(slots=True, eq=False)
class Request:
    """One turn being sampled. `stop` is None while it runs."""

    slot: Any
    """Slot of the runner that answers."""
    sampling: Sampling
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    """One per token if the runner has a value head, else empty."""
    versions: list[int] = field(default_factory=list)
    """Policy versions of the tokens sampled before the last change of weights."""
    stop: Stop | None = None
    taken: bool = False
    """Whether a pass has started it; else it waits for free memory."""
    began_s: float | None = None
    """Engine time, which advances in passes only, when it was started."""

    def label_tokens(self, version: int) -> tuple[int, ...]:
        """Label the tokens without a version with this one; return the versions of all tokens."""
        self.versions += [version] * (len(self.ids) - len(self.versions))
        return tuple(self.versions)


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

    def release(self, slot: Any) -> None:
        """Free the slot and drop its running request."""
        ...

    def run_pass(self, arrived: list[Request]) -> list[Request]:
        """Advance all requests, the arrived ones included; mark those it starts; return the finished ones."""
        ...


def stop_reason(request: Request, stop_ids: Collection[int], decode: Callable[[list[int]], str]) -> Stop | None:
    """Return why the last token ended the turn, or None if the turn continues."""
    if request.ids[-1] in stop_ids:
        return Stop.EOS
    if request.sampling.stop:
        # A character is at most 4 tokens (bytes), so these last tokens contain any stop string.
        tail = 4 * max(len(text) for text in request.sampling.stop)
        text = decode(request.ids[-tail:])
        if any(stop in text for stop in request.sampling.stop):
            return Stop.STRING
    return Stop.LENGTH if len(request.ids) >= request.sampling.max_tokens else None
