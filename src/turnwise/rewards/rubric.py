"""Rubrics: the reward of an answer as a weighted sum of named parts.

A part is an async function of a `Submission`; `rewards.scoring.score_submission` runs the parts of a rubric.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.messages import Content, Message
from turnwise.settings.section import Section
from turnwise.text.suggestions import suggest_and_list
from turnwise.tools.tool import ToolResult

log = logging.getLogger(__name__)

RewardSettings = str | tuple[str | dict[str, Any], ...]
"""A rubric as a recipe writes it: FILE.py:function, the name of a reward, or a list of names and tables with `use`."""
TextSource = Literal["answer", "said"]
"""The answer, or everything that the agent said in the episode."""
MAX_CHARS = 200_000
"""Longer texts are cut before they are scored."""
NOT_CAUSED_BY_ANSWER = (UserError, EnvironmentFailure, InfrastructureFailure, OSError)
"""Failures of settings, task rows, sandboxes, databases, judges or the machine. No answer can cause these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """An answer that the agent submitted, with everything that a reward may look at."""

    question: str
    answer: str
    row: Mapping[str, Any]
    """Columns of the task, such as its reference answer."""
    messages: tuple[Message, ...] = ()
    """The whole episode; the answer is the last message."""
    run_tool: Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]] | None = None
    """Calls a tool of the episode by name. None if the episode has no tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDescription:
    """An agent's text about a state, and the observation of that state."""

    text: str
    observation: Content
    """Texts and images that show the state: before the agent's actions, or after them for a prediction."""
    predicted: bool
    """True if it was written before the actions that led to the state."""
    rules: str = ""
    """Rules of the environment."""


class RubricPart(Protocol):
    async def __call__(self, submission: Submission, /) -> float: ...


@runtime_checkable
class Forgeable(Protocol):
    """A part that code in an answer may be able to cheat."""

    def can_be_forged(self, row: Mapping[str, Any]) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    parts: Mapping[str, RubricPart]
    """By name. The first part decides whether an episode succeeded."""
    weights: Mapping[str, float]
    columns: Mapping[str, str] = field(default_factory=dict)
    """Task column that a part compares answers with, for parts that use one."""


class BuiltInReward(Section, ABC):
    """A part of a rubric that is turnwise's own code. Its fields are the options of a recipe.

    If an answer makes it raise, the answer gets the worst score: retrying the episode would let a bad answer be
    sampled again. The user's reward functions stop the run instead (`rewards.functions`).
    """

    worst: ClassVar[float] = 0.0
    """Score of an answer that `score` cannot handle."""

    @abstractmethod
    async def score(self, submission: Submission) -> float: ...

    async def __call__(self, submission: Submission) -> float:
        try:
            return await self.score(submission)
        except NOT_CAUSED_BY_ANSWER:
            raise
        except Exception as error:
            log.warning(
                "%s raised %s on the answer %.200r, which scores %g. Please report this.",
                type(self).__name__, type(error).__name__, submission.answer, self.worst, exc_info=error,
            )  # fmt: skip
            return self.worst


def get_column(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise UserError(
            f'A reward needs the column "{name}", which a task row lacks:{suggest_and_list(name, map(str, row))}'
        )
    return row[name]


def reference_answers(row: Mapping[str, Any], column: str) -> list[str]:
    """Return the accepted answers in a column, which holds one or a list."""
    value = get_column(row, column)
    accepted = list(value) if isinstance(value, list | tuple) else [value]
    if not accepted or not all(isinstance(answer, str | int | float) for answer in accepted):
        raise UserError(f'The column "{column}" of a task row has no answer: give a text, a number or a list of them.')
    return [str(answer) for answer in accepted]


def select_text(submission: Submission, source: TextSource) -> str:
    if source == "answer":
        return submission.answer[:MAX_CHARS]
    texts = [message.content for message in submission.messages if message.role == "assistant"]
    return "\n".join(texts or [submission.answer])[:MAX_CHARS]
