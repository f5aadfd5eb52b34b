"""Context modes that restart: a sliding window, a text memory per turn, and summaries."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from turnwise.core.errors import FOREIGN_ERRORS, EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.messages import Message, user
from turnwise.core.trajectory import Turn
from turnwise.envs.answers import read_answer
from turnwise.render.renderer import Renderer
from turnwise.render.slots import text_runs
from turnwise.rollout.context import ContextState, FullContext, StepObservation, permanent_messages, prepend_text
from turnwise.tools.call_formats import strip_thinking

CUT = " [...] "
SEPARATOR = "\n\n"
MEMORY_CHARS = 2000
"""Longest memory of earlier turns, in characters."""
SUMMARY_PROMPT = (
    "Your context will be cleared. Sum up for yourself what you need in order to go on: the goal, what you did and "
    "found, and your plan."
)


HOOK_CHARS = 20_000
"""Longest summary of a hook, in characters. The model's own summary is limited in tokens."""


class RecentTurns(FullContext):
    """Base of contexts that show the last `turns` turns."""

    def __init__(self, renderer: Renderer, *, turns: int, keep_opening: bool) -> None:
        super().__init__(renderer)
        self._turns, self._keep_opening = turns, keep_opening


class WindowContext(RecentTurns):
    """Sliding window: the last `turns` turns in full, whole turns dropped from the front.

    Each slide costs the engine a prefill and the learner a segment of the whole window.
    """

    async def next(self, pending: ContextState, turns: Sequence[Turn], messages: Sequence[Message]) -> ContextState:
        grown = self._grow(pending, turns[-1], messages)
        if len(turns) - pending.first_shown <= self._turns:
            return grown
        return self._slide(grown, turns, first_shown=len(turns) - self._turns)

    def _slide(self, grown: ContextState, turns: Sequence[Turn], first_shown: int) -> ContextState:
        """Start a context with the permanent messages and the first shown observation, then splice in stored ids.

        The first observation is rendered again: its stored ids begin by closing an action that is no longer shown.
        """
        first, *rest = grown.observations[first_shown - 1 :]
        opening = (*permanent_messages(grown.opening, self._keep_opening), *prepend_text("", first.messages))
        tail = [
            token
            for turn, shown in zip(turns[first_shown:], rest, strict=True)
            for part in (turn.action_ids, shown.ids)
            for token in part
        ]
        return self._restart(replace(grown, first_shown=first_shown), opening, tail)


def render_memory(observations: Sequence[str], turns: Sequence[Turn], count: int, chars: int = MEMORY_CHARS) -> str:
    """Return the last `count` turns and the observations that they answered as text; empty if there are none.

    Turn 3
    You see a door.
    You: Open

    `chars` limits the whole text: the oldest turns are dropped first, then the newest is clipped in the middle.
    """
    first = max(0, len(turns) - count)
    both = zip(observations[first:], turns[first:], strict=True)
    entries = [_entry(first + index, seen, turn) for index, (seen, turn) in enumerate(both, 1)]
    kept: list[str] = []
    for entry in reversed(entries):
        if kept and len(entry) > chars:
            break
        kept.append(clip_middle(entry, chars))
        chars -= len(kept[-1]) + len(SEPARATOR)
    return "" if not kept else f"{SEPARATOR.join(kept[::-1])}{SEPARATOR}Turn {len(turns) + 1}, now:"


def _entry(number: int, observation: str, turn: Turn) -> str:
    action = f"{action_text(turn.message)}{' (invalid)' if turn.invalid else ''}"
    return "\n".join(part for part in (f"Turn {number}", observation, f"You: {action}") if part)


class TurnContext(RecentTurns):
    """One segment per turn. The memory is encoded as message content, so nothing in it becomes a special token."""

    async def next(self, pending: ContextState, turns: Sequence[Turn], messages: Sequence[Message]) -> ContextState:
        always = permanent_messages(pending.opening, self._keep_opening)
        first = [message for message in pending.opening.messages if message not in always]
        seen = [observation_text(first), *(observation_text(shown.messages) for shown in pending.observations)]
        memory = render_memory(seen, turns, self._turns)
        observations = (*pending.observations, StepObservation(messages=tuple(messages), ids=()))
        return self._restart(
            replace(pending, observations=observations, first_shown=len(turns)),
            (*always, *prepend_text(memory, messages)),
        )


def action_text(message: Message) -> str:
    """Return an action on one line: its answer, or all text outside the thinking."""
    answer = read_answer(message.content, several=False)
    spoken = strip_thinking(message.content)
    return " ".join((answer.actions[0] if answer.actions else spoken).split()) or "nothing"


def clip_middle(text: str, chars: int) -> str:
    """Shorten text to at most `chars` characters, keeping its beginning and end."""
    if len(text) <= chars:
        return text
    kept = max(0, chars - len(CUT))
    head = kept // 2
    return f"{text[:head]}{CUT}{text[len(text) - (kept - head) :]}"[:chars]


def observation_text(messages: Sequence[Message]) -> str:
    """Return the text of an observation, for the memory: images are left out."""
    return "\n".join(_text_around_images(message) if message.images else message.content for message in messages)


def _text_around_images(message: Message) -> str:
    """Return the text without the line breaks around images, which would leave empty lines in their place."""
    return "\n".join(text for run in text_runs(message) if (text := run.strip("\n")))


SummaryHook = Callable[[Sequence[Message]], str | Awaitable[str]]
"""Function, possibly async, from the episode's messages without the last observation to a summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTrigger:
    """Summarise once the context has this many tokens or shows this many turns; None disables a condition."""

    tokens: int | None
    turns: int | None

    def due(self, grown: ContextState) -> bool:
        long = self.tokens is not None and grown.context_length >= self.tokens
        return long or (self.turns is not None and len(grown.observations) - grown.first_shown >= self.turns)


class SummaryContext(FullContext):
    """Context that grows until a summary is due, then restarts with the summary.

    The model samples the summary, so it is trained on, as a turn without a reward and without an environment step. It
    is requested before the newest observation is shown, so that a long observation leaves room for it. The new context
    starts with the summary and that observation. At least one environment turn separates two summaries.
    """

    def __init__(
        self,
        renderer: Renderer,
        *,
        when: SummaryTrigger,
        max_tokens: int,
        writer: SummaryHook | None,
        keep_opening: bool,
    ) -> None:
        """`writer` None: ask the model, for at most `max_tokens` tokens."""
        super().__init__(renderer)
        self._when, self._max_tokens = when, max_tokens
        self._writer, self._keep_opening = writer, keep_opening
        if writer is not None:
            self.builder = "the summary hook"

    async def next(self, pending: ContextState, turns: Sequence[Turn], messages: Sequence[Message]) -> ContextState:
        if pending.is_summary:
            return self._resume(pending, turns[-1].message.content.rpartition("</think>")[2])
        grown = self._grow(pending, turns[-1], messages)
        if not self._when.due(grown):
            return grown
        if self._writer is None:
            return self._ask(pending, grown, turns[-1])
        return self._resume(grown, await _written(self._writer, episode_messages(grown, turns)))

    def _ask(self, pending: ContextState, grown: ContextState, turn: Turn) -> ContextState:
        asked = self._append(pending, turn, [user(SUMMARY_PROMPT)])
        return replace(asked, observations=grown.observations, is_summary=True, max_new_tokens=self._max_tokens)

    def _resume(self, pending: ContextState, summary: str) -> ContextState:
        text = f"Summary of the turns so far:\n{summary.strip() or 'none'}"
        opening = (
            *permanent_messages(pending.opening, self._keep_opening),
            *prepend_text(text, pending.observations[-1].messages),
        )
        fresh = replace(pending, first_shown=len(pending.observations), is_summary=False, max_new_tokens=None)
        return self._restart(fresh, opening)


def episode_messages(pending: ContextState, turns: Sequence[Turn]) -> list[Message]:
    """Return the episode's messages up to the last action."""
    messages = list(pending.opening.messages)
    for turn, shown in zip(turns, pending.observations, strict=True):
        messages += [turn.message, *shown.messages]
    return messages[: len(messages) - len(pending.observations[-1].messages)]


async def _written(writer: SummaryHook, messages: Sequence[Message]) -> str:
    """Call the summary hook. If it fails, the episode is retried, as for a failing tool."""
    try:
        text = writer(messages)
        text = await text if inspect.isawaitable(text) else text
    except (UserError, EnvironmentFailure, InfrastructureFailure):
        raise
    except asyncio.CancelledError as cancelled:
        cancelled.add_note("the summary hook")  # read by timeout_cause
        raise
    except FOREIGN_ERRORS as error:
        raise InfrastructureFailure(f"summary hook: {type(error).__name__}: {error}") from error
    if not isinstance(text, str):
        raise UserError(f"The summary hook must return a str, not {type(text).__name__}.")
    return text[:HOOK_CHARS]
