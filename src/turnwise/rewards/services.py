"""Everything that the rewards of one run share: judges, the math verifier, and rubrics that are already built."""

from collections.abc import Awaitable
from typing import TypeVar

from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.math_verifier import MathVerifier
from turnwise.rewards.rubric import Rubric

T = TypeVar("T")


class RewardServices:
    """Created per run or evaluation, passed to whatever scores answers, closed at the end.

    Connections and processes are opened when they are first needed, in whichever event loop runs then.
    """

    def __init__(self, judges: JudgeRegistry | None = None) -> None:
        self.judges = judges or JudgeRegistry()
        self.math_verifier = MathVerifier()
        self.rubrics: dict[str, Rubric] = {}
        """Rubrics by their settings as JSON."""

    def metrics(self) -> dict[str, float]:
        return self.judges.metrics()

    async def run(self, work: Awaitable[T]) -> T:
        """Await `work`, then close: `asyncio.run(services.run(train()))`."""
        try:
            return await work
        finally:
            await self.close()

    async def close(self) -> None:
        """Close what the running event loop has open. It is opened again if it is needed."""
        try:
            await self.judges.close()
        finally:
            self.math_verifier.close()
