"""A rubric: what an answer is worth, as the weighted sum of parts that each look at one thing.

Every part is an async function of what was answered; all of them wait together, and each is recorded by its own name.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from turnwise.core.errors import (
    FOREIGN_ERRORS,
    EnvironmentFailure,
    InfrastructureFailure,
    RewardFailure,
    UserError,
)
from turnwise.core.messages import Message
from turnwise.tools.tool import ToolResult

_first_alone: ContextVar[bool] = ContextVar("first_alone", default=False)


@contextmanager
def deciding_part_alone() -> Iterator[None]:
    """For play of which only success is read, as a demonstration's: the first part decides it, others may cost."""
    token = _first_alone.set(True)
    try:
        yield
    finally:
        _first_alone.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What the parts of a rubric look at."""

    question: str
    answer: str
    row: Mapping[str, Any]
    """The task's columns, such as its reference answer."""
    messages: tuple[Message, ...] = ()
    """The whole episode, the answer last."""
    run_tool: Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]] | None = None
    """Runs a tool of the episode by its name, for a part that checks an answer by doing; None where there are none."""


class Part(Protocol):
    async def __call__(self, answered: Answered) -> float: ...


@runtime_checkable
class Forgeable(Protocol):
    """A part whose value an answer might claim without earning it."""

    def can_be_forged(self, row: Mapping[str, Any]) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    parts: Mapping[str, Part]
    weights: Mapping[str, float]

    async def score(self, answered: Answered) -> dict[str, float]:
        """By name, before they are weighted. A part that breaks ends the others: the episode is run again."""
        asked = dict(islice(self.parts.items(), 1)) if _first_alone.get() else self.parts
        tasks: dict[str, asyncio.Task[float]] = {}
        try:
            with _noting(tasks):
                async with asyncio.TaskGroup() as group:
                    for name, part in asked.items():
                        tasks[name] = group.create_task(_value(name, part, answered))
        except* (UserError, EnvironmentFailure, InfrastructureFailure) as failures:
            raise failures.exceptions[0] from None
        return {name: task.result() for name, task in tasks.items()}

    def total(self, values: Mapping[str, float]) -> float:
        return sum(self.weights[name] * value for name, value in values.items())


@contextmanager
def _noting(tasks: Mapping[str, asyncio.Task[float]]) -> Iterator[None]:
    """Cut off, the error has a note of who was waited for: whoever tells of a time-out can name them."""
    try:
        yield
    except asyncio.CancelledError as cancelled:
        if late := [name for name, task in tasks.items() if task.cancelled()]:
            cancelled.add_note(f"the reward {' and '.join(late)}")
        raise


async def _value(name: str, part: Part, answered: Answered) -> float:
    try:
        value = float(await part(answered))
    except (UserError, EnvironmentFailure):
        raise
    except (InfrastructureFailure, OSError) as failure:
        raise RewardFailure(f"the reward {name}: {failure}") from failure
    except FOREIGN_ERRORS as error:
        raise EnvironmentFailure(f"the reward {name} failed: {type(error).__name__}: {error}") from error
    if not math.isfinite(value):
        raise EnvironmentFailure(f"the reward {name} gave {value}")
    return value
