"""A budget of calls and tokens. Both are reserved before a request is sent: many at once cannot overrun it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from turnwise.core.errors import UserError
from turnwise.rewards.per_loop import PerLoop

MORE = "raise its {}; a run goes on so with --from RUN --model.name RUN"
"""A run that is resumed keeps its settings, and what it has spent."""

Note = Callable[[int, int], None]
"""Takes calls and tokens as they are reserved, and as tokens turn out fewer or more, which may be below 0."""


@dataclass(slots=True)
class JudgeCounts:
    calls: int = 0
    """Requests that were sent, those that were sent again included."""
    tokens: int = 0
    """Read and written, as the endpoint counts them; estimated where it does not."""
    cached: int = 0
    """Verdicts that cost nothing: kept from before, or asked for by another at the same time."""
    retried: int = 0
    """Requests that met a failure which may pass."""
    unreadable: int = 0
    """Answers that were no verdict, and were asked for again."""
    left_out: int = 0
    """Members of groups that there was no verdict on: the rest of their group is trained."""
    seconds: float = 0.0
    """Waiting for the judge, those who wait at the same time added up."""

    def take_up(self, before: Mapping[str, float]) -> None:
        """Counts go on from those of `before`, by their names, where they are not beyond them."""
        for name, value in asdict(self).items():
            setattr(self, name, max(value, before.get(name, 0)))

    def metrics(self) -> dict[str, float]:
        return {f"judge/{name}": float(value) for name, value in asdict(self).items()}


@dataclass(slots=True)
class Reservation:
    """One request's share of the budget, until it is known what it cost."""

    meter: "JudgeBudget"
    reserved: int
    open: bool = True

    def close(self, tokens: int) -> None:
        """`tokens`: what the request cost. Closing again changes nothing."""
        if self.open:
            self.open = False
            self.meter.settle(self.reserved, tokens)


class JudgeBudget:
    def __init__(self, max_calls: int, max_tokens: int, counts: JudgeCounts, note: Note = lambda *_: None) -> None:
        self.counts, self._note = counts, note
        self._max_calls, self._max_tokens = max_calls, max_tokens
        self._reserved = 0
        self._settled = PerLoop(asyncio.Event)

    async def sending(self, tokens: int) -> Reservation:
        """Before each request, which costs `tokens` at most. A UserError where the budget is spent.

        Waits where requests under way may turn out to leave enough; unblocked by `settle`.
        """
        while self._reserved and self._left() < tokens and self.counts.calls < self._max_calls:
            settled = self._settled.get()
            settled.clear()
            await settled.wait()
        if self.counts.calls >= self._max_calls:
            raise UserError(f"the judge's budget of {self._max_calls} calls is spent: {MORE.format('max_calls')}")
        if self._left() < tokens:
            raise UserError(
                f"the judge's budget of {self._max_tokens} tokens is spent ({self.counts.tokens} used, the next call "
                f"may take {tokens}): {MORE.format('max_tokens_total')}"
            )
        self._note(1, tokens)
        self.counts.calls += 1
        self._reserved += tokens
        return Reservation(self, tokens)

    def settle(self, reserved: int, tokens: int) -> None:
        self._reserved -= reserved
        self.counts.tokens += tokens
        self._settled.get().set()
        if tokens != reserved:
            self._note(0, tokens - reserved)

    def _left(self) -> int:
        return self._max_tokens - self.counts.tokens - self._reserved
