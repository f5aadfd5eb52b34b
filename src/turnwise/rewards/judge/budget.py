"""Counters and budget of a judge. Calls and tokens are reserved before a request, so concurrent ones cannot overrun."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from turnwise.concurrency.per_loop import PerLoop
from turnwise.core.errors import UserError

CONTINUE = "raise its {} in a new run from the trained model (a resumed run keeps its settings)"

OnSpend = Callable[[int, int], None]
"""Called with calls and tokens: before a request the reserved amount, after it the difference to the actual cost."""


@dataclass(slots=True)
class JudgeCounts:
    """Counters of a judge since the run began."""

    calls: int = 0
    """Requests sent, including retries."""
    tokens: int = 0
    """Prompt and completion tokens as counted by the endpoint; estimated if it does not count them."""
    cached: int = 0
    """Verdicts that cost nothing: from the cache, or shared with an equal request that was running."""
    retried: int = 0
    """Requests that met a transient failure."""
    unreadable: int = 0
    """Answers that were not a verdict, so that the judge was asked again."""
    left_out: int = 0
    """Group members without a verdict. The rest of their group is trained."""
    seconds: float = 0.0
    """Waiting time, summed over concurrent requests."""

    def raise_to(self, counts: Mapping[str, float]) -> None:
        """Raise each counter to its value in `counts`, where that is higher."""
        for name, value in asdict(self).items():
            setattr(self, name, max(value, counts.get(name, 0)))

    def metrics(self) -> dict[str, float]:
        return {f"judge/{name}": float(value) for name, value in asdict(self).items()}


@dataclass(slots=True)
class Reservation:
    """One request's share of the budget, until its cost is known."""

    budget: "JudgeBudget"
    tokens: int
    open: bool = True

    def settle(self, cost: int) -> None:
        """Replace the reserved tokens by what the request cost. Only the first call has an effect."""
        if self.open:
            self.open = False
            self.budget.settle(self.tokens, cost)


class JudgeBudget:
    def __init__(
        self, max_calls: int, max_tokens: int, counts: JudgeCounts, on_spend: OnSpend = lambda *_: None
    ) -> None:
        self.counts, self._on_spend = counts, on_spend
        self._max_calls, self._max_tokens = max_calls, max_tokens
        self._reserved = 0
        self._settled = PerLoop(asyncio.Event)

    async def reserve(self, tokens: int) -> Reservation:
        """Reserve one call and `tokens`, the most that it can cost. Raises UserError if the budget is spent.

        Waits while running requests may turn out cheaper and leave enough; unblocked by `settle`.
        """
        while self._reserved and self._left() < tokens and self.counts.calls < self._max_calls:
            settled = self._settled.get()
            settled.clear()
            await settled.wait()
        if self.counts.calls >= self._max_calls:
            raise UserError(f"The judge's budget of {self._max_calls} calls is spent: {CONTINUE.format('max_calls')}")
        if self._left() < tokens:
            raise UserError(
                f"The judge's budget of {self._max_tokens} tokens is spent ({self.counts.tokens} used, the next call "
                f"may take {tokens}): {CONTINUE.format('max_tokens_total')}"
            )
        self._on_spend(1, tokens)
        self.counts.calls += 1
        self._reserved += tokens
        return Reservation(self, tokens)

    def settle(self, reserved: int, cost: int) -> None:
        self._reserved -= reserved
        self.counts.tokens += cost
        self._settled.get().set()
        if cost != reserved:
            self._on_spend(0, cost - reserved)

    def _left(self) -> int:
        return self._max_tokens - self.counts.tokens - self._reserved
