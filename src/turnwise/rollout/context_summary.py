"""A context that grows until it is long, and starts anew with a summary: the model's own, or one that a hook writes."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from turnwise.core.errors import FOREIGN_ERRORS, EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.messages import Message, user
from turnwise.core.trajectory import Turn
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import FullHistory, Pending, prefaced, rules

Writer = Callable[[Sequence[Message]], str | Awaitable[str]]
"""The episode's messages, its last observation left out, to a summary of them. It may be a coroutine function."""

HOOK_CHARS = 20_000
"""What a hook writes is cut here; the model's summary is bounded in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """A summary is due once the context has this many tokens or shows this many turns, whichever comes first."""

    tokens: int | None
    turns: int | None

    def due(self, grown: Pending) -> bool:
        long = self.tokens is not None and grown.context_length >= self.tokens
        return long or (self.turns is not None and len(grown.later) - grown.oldest >= self.turns)


class Summary(FullHistory):
    """Between two summaries lies at least one turn of the environment.

    The model's summary is sampled, so it is a turn of its own, an aside: trained like any other, with no reward of its
    own and no step of the environment. It is asked for before the newest observation is shown, which then opens the
    new context: a long one cannot crowd the summary out.
    """

    def __init__(
        self, renderer: Renderer, *, when: When, prompt: str, max_tokens: int, writer: Writer | None, keep_opening: bool
    ) -> None:
        """`writer`: None asks the model, with `prompt` and at most `max_tokens` for its answer."""
        super().__init__(renderer)
        self._when, self._prompt, self._max_tokens = when, prompt, max_tokens
        self._writer, self._keep_opening = writer, keep_opening
        if writer is not None:
            self.builder = "the summary hook"

    async def next(self, pending: Pending, turns: Sequence[Turn], messages: Sequence[Message]) -> Pending:
        if pending.aside:
            return self._resumed(pending, turns[-1].message.content.rpartition("</think>")[2])
        grown = self._grown(pending, turns[-1], messages)
        if not self._when.due(grown):
            return grown
        if self._writer is None:
            return self._asked(pending, grown, turns[-1])
        return self._resumed(grown, await _written(self._writer, story(grown, turns)))

    def _asked(self, pending: Pending, grown: Pending, turn: Turn) -> Pending:
        asked = self._appended(pending, turn, [user(self._prompt)])
        return replace(asked, later=grown.later, aside=True, max_new_tokens=self._max_tokens)

    def _resumed(self, pending: Pending, summary: str) -> Pending:
        text = f"Summary of the turns so far:\n{summary.strip() or 'none'}"
        opening = (*rules(pending.opening, self._keep_opening), *prefaced(text, pending.later[-1].messages))
        fresh = replace(pending, oldest=len(pending.later), aside=False, max_new_tokens=None)
        return self._restarted(fresh, opening)


def story(pending: Pending, turns: Sequence[Turn]) -> list[Message]:
    """The whole episode in messages, up to the last action."""
    told = list(pending.opening.messages)
    for turn, shown in zip(turns, pending.later, strict=True):
        told += [turn.message, *shown.messages]
    return told[: len(told) - len(pending.later[-1].messages)]


async def _written(writer: Writer, messages: Sequence[Message]) -> str:
    """A hook's summary. One that fails is run again with its episode, as a tool or a server would be."""
    try:
        text = writer(messages)
        text = await text if inspect.isawaitable(text) else text
    except (UserError, EnvironmentFailure, InfrastructureFailure):
        raise
    except asyncio.CancelledError as cancelled:
        cancelled.add_note("the summary hook")  # whoever tells of a time-out can name it
        raise
    except FOREIGN_ERRORS as error:
        raise InfrastructureFailure(f"summary hook: {type(error).__name__}: {error}") from error
    if not isinstance(text, str):
        raise UserError(f"the summary hook returned {type(text).__name__}: return text")
    return text[:HOOK_CHARS]
