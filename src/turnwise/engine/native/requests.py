"""What a session asks of the engine, whichever way it is answered."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from turnwise.core.protocols import Sampling
from turnwise.core.trajectory import Stop


class SessionSlot(Protocol):
    """One session's place in the engine."""

    @property
    def pending(self) -> list[int]:
        """Tokens of its context that wait to be run."""
        ...

    def append(self, ids: Sequence[int]) -> None:
        """More context, for the next pass."""
        ...

    def restart(self) -> None: ...


@dataclass(slots=True, eq=False)
class Request:
    """One turn being sampled. `stop` is None while it runs."""

    slot: Any
    """Of the runner that answers."""
    sampling: Sampling
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: Stop | None = None
    taken: bool = False
    """A pass of the runner has taken it up; else it waits for room."""
    began_s: float | None = None
    """The engine's clock, which runs in passes only, when it was taken up."""


class PassRunner(Protocol):
    """Answers requests pass by pass. No asyncio here."""

    counts: dict[str, int]

    @property
    def capture_s(self) -> float:
        """Seconds spent on capturing graphs so far."""
        ...

    def sleep(self) -> None:
        """Gives memory back until the next pass, while nobody holds a place."""
        ...

    def claim(self, address: int) -> Any:
        """A place for a session; the caller sees to it that one is left."""
        ...

    def release(self, slot: Any) -> None:
        """Ends what the slot still ran."""
        ...

    def run_pass(self, arrived: list[Request]) -> list[Request]:
        """Moves all requests on, those that arrived included, and marks those that it takes up; returns those done."""
        ...


def stop_reason(request: Request, stop_ids: Collection[int], decode: Callable[[list[int]], str]) -> Stop | None:
    """Whether the last token ended the turn."""
    if request.ids[-1] in stop_ids:
        return Stop.EOS
    if request.sampling.stop:
        # A character is at most 4 tokens (bytes), so the tail of that many tokens holds any stop string.
        tail = 4 * max(len(text) for text in request.sampling.stop)
        text = decode(request.ids[-tail:])
        if any(stop in text for stop in request.sampling.stop):
            return Stop.STRING
    return Stop.LENGTH if len(request.ids) >= request.sampling.max_tokens else None
