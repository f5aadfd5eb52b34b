"""A rubric: what an answer is worth, as the weighted sum of parts that each look at one thing.

Every part is an async function of what was answered; all of them wait together, and each is recorded by its own name.
"""

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from turnwise.config.section import Section
from turnwise.core.errors import (
    FOREIGN_ERRORS,
    EnvironmentFailure,
    InfrastructureFailure,
    RewardFailure,
    UserError,
)
from turnwise.core.messages import Message
from turnwise.core.suggestions import suggest_and_list
from turnwise.tools.tool import ToolResult

_first_alone: ContextVar[bool] = ContextVar("first_alone", default=False)


@contextmanager
def first_part_only() -> Iterator[None]:
    """For play of which only success is read, as a demonstration's: the first part decides it, others may cost."""
    token = _first_alone.set(True)
    try:
        yield
    finally:
        _first_alone.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What the parts of a rubric look at."""

    question: str
    answer: str
    row: Mapping[str, Any]
    """The task's columns, such as its reference answer."""
    messages: tuple[Message, ...] = ()
    """The whole episode, the answer last."""
    run_tool: Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]] | None = None
    """Runs a tool of the episode by its name, for a part that checks an answer by doing; None where there are none."""


class RubricPart(Protocol):
    async def __call__(self, answered: Submission) -> float: ...


@runtime_checkable
class Forgeable(Protocol):
    """A part whose value an answer might claim without earning it."""

    def can_be_forged(self, row: Mapping[str, Any]) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    parts: Mapping[str, RubricPart]
    weights: Mapping[str, float]

    async def score(self, answered: Submission) -> dict[str, float]:
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


async def _value(name: str, part: RubricPart, answered: Submission) -> float:
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


log = logging.getLogger(__name__)
NOT_CAUSED_BY_ANSWER = (UserError, EnvironmentFailure, InfrastructureFailure, OSError)
"""A setting or a row, a sandbox, database or judge, and the machine: no answer brings these about."""


class BuiltInReward(Section, ABC):
    """A part of a rubric in our own code. The user's functions are called by `rewards.calling`, which stops the run."""

    worst: ClassVar[float] = 0.0
    """Score of an answer that `score` cannot read."""

    @abstractmethod
    async def score(self, answered: Submission) -> float:
        """Return the score of the answer."""

    async def __call__(self, answered: Submission) -> float:
        """The score. An answer that breaks it gets the worst: run again, a bad answer would be drawn anew."""
        try:
            return await self.score(answered)
        except NOT_CAUSED_BY_ANSWER:
            raise
        except Exception as error:
            log.warning(
                "%s raised %s on the answer %.200r, which scores %g; please report it",
                type(self).__name__, type(error).__name__, answered.answer, self.worst, exc_info=error,
            )  # fmt: skip
            return self.worst


TextSource = Literal["answer", "said"]
"""The answer alone, or all that the agent said in the episode."""
MAX_CHARS = 200_000
"""Characters that are looked at."""


def get_column(row: Mapping[str, Any], name: str) -> Any:
    """Of a row that was read from a file: a column that it lacks is a mistake in the settings or in the file."""
    if name not in row:
        raise UserError(
            f'a reward asks for the column "{name}", which a row lacks:{suggest_and_list(name, map(str, row))}'
        )
    return row[name]


def reference_answers(row: Mapping[str, Any], name: str) -> list[str]:
    """The accepted answers: one, or a list of them."""
    value = get_column(row, name)
    accepted = list(value) if isinstance(value, list | tuple) else [value]
    if not accepted or not all(isinstance(each, str | int | float) for each in accepted):
        raise UserError(f'the column "{name}" of a row is no answer: give a text, a number or a list of them')
    return [str(each) for each in accepted]


def select_text(answered: Submission, of: TextSource) -> str:
    if of == "answer":
        return answered.answer[:MAX_CHARS]
    said = [message.content for message in answered.messages if message.role == "assistant"]
    return "\n".join(said or [answered.answer])[:MAX_CHARS]
