"""The last turns only, as they were: their observations and the very ids that were sampled."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from turnwise.core.errors import FOREIGN_ERRORS, EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.messages import Message, user
from turnwise.core.trajectory import Turn
from turnwise.envs.answers import read_answer
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import ContextState, FullContext, StepObservation, permanent_messages, prepend_text
from turnwise.tools.call_formats import strip_thinking

CUT = " [...] "


HOOK_CHARS = 20_000
"""What a hook writes is cut here; the model's summary is bounded in tokens."""


class WindowContext(FullContext):
    """A full history of `turns` turns besides the pending one, whole turns dropped from the front.

    It grows by `slack` turns before it slides back to `turns`. A slide costs the engine a prefill and the learner a
    segment of the whole window, so a slack of n makes n + 1 turns share one: with 0 every turn pays for all of it.
    """

    def __init__(self, renderer: Renderer, *, turns: int, slack: int, keep_opening: bool) -> None:
        super().__init__(renderer)
        self._turns, self._slack, self._keep_opening = turns, slack, keep_opening

    async def next(self, pending: ContextState, turns: Sequence[Turn], messages: Sequence[Message]) -> ContextState:
        grown = self._grown(pending, turns[-1], messages)
        if len(turns) - pending.oldest <= self._turns + self._slack:
            return grown
        return self._slid(grown, turns, oldest=len(turns) - self._turns)

    def _slid(self, grown: ContextState, turns: Sequence[Turn], oldest: int) -> ContextState:
        """The rules and the oldest observation that stays open the context; stored ids are all that follows.

        That observation is rendered from its message, since what was stored before it closes an action that is gone.
        """
        first, *rest = grown.later[oldest - 1 :]
        opening = (*permanent_messages(grown.opening, self._keep_opening), *prepend_text("", first.messages))
        tail = [
            token
            for turn, shown in zip(turns[oldest:], rest, strict=True)
            for part in (turn.action_ids, shown.ids)
            for token in part
        ]
        return self._restarted(replace(grown, oldest=oldest), opening, tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMemory:
    """How earlier turns are told.

    Turn 3                exchanges: what was seen, and what was done about it
    You see a door.
    You: Open

    Turn 3: Open          actions: only what was done
    """

    form: Literal["exchanges", "actions"]
    turns: int
    """The last so many of them."""
    chars: int
    """Of all of it: the oldest turns are left out, and the newest is cut in its middle, where it is longer."""
    rewards: bool
    """Whether the environment's rewards are told too: then the model sees what it is trained by."""

    def tell(self, observations: Sequence[str], turns: Sequence[Turn]) -> str:
        """The memory of these turns, each with what it answered; empty where there is nothing to tell."""
        first = max(0, len(turns) - self.turns)
        both = zip(observations[first:], turns[first:], strict=True)
        told = self._bounded([self._entry(first + index, seen, turn) for index, (seen, turn) in enumerate(both, 1)])
        return "" if not told else f"{self._between.join(told)}\n\nTurn {len(turns) + 1}, now:"

    @property
    def _between(self) -> str:
        return "\n" if self.form == "actions" else "\n\n"

    def _entry(self, number: int, seen: str, turn: Turn) -> str:
        outcome = f" (reward {turn.reward:g})" if self.rewards else ""
        did = f"{action_text(turn.message)}{' (invalid)' if turn.invalid else ''}{outcome}"
        if self.form == "actions":
            return f"Turn {number}: {did}"
        return "\n".join(part for part in (f"Turn {number}", seen, f"You: {did}") if part)

    def _bounded(self, entries: list[str]) -> list[str]:
        kept: list[str] = []
        left = self.chars
        for entry in reversed(entries):
            if kept and len(entry) > left:
                break
            kept.append(clip_middle(entry, left))
            left -= len(kept[-1]) + len(self._between)
        return kept[::-1]


class TurnContext(FullContext):
    """One segment a turn. The memory is plain text, encoded as content: nothing in it can become a special token."""

    def __init__(self, renderer: Renderer, *, memory: TurnMemory, keep_opening: bool) -> None:
        super().__init__(renderer)
        self._memory, self._keep_opening = memory, keep_opening

    async def next(self, pending: ContextState, turns: Sequence[Turn], messages: Sequence[Message]) -> ContextState:
        always = permanent_messages(pending.opening, self._keep_opening)
        first = [message for message in pending.opening.messages if message not in always]
        seen = [_text(first), *(_text(shown.messages) for shown in pending.later)]
        memory = self._memory.tell(seen, turns)
        later = (*pending.later, StepObservation(messages=tuple(messages), ids=()))
        return self._restarted(
            replace(pending, later=later, oldest=len(turns)), (*always, *prepend_text(memory, messages))
        )


def action_text(message: Message) -> str:
    """What an action comes to, on one line: its answer, or all that was said outside of the thinking."""
    answer = read_answer(message.content, several=False)
    spoken = strip_thinking(message.content)
    return " ".join((answer.actions[0] if answer.actions else spoken).split()) or "nothing"


def clip_middle(text: str, chars: int) -> str:
    """At most so many characters: the beginning and the end, where that is too few for all."""
    if len(text) <= chars:
        return text
    room = max(0, chars - len(CUT))
    head = room // 2
    return f"{text[:head]}{CUT}{text[len(text) - (room - head) :]}"[:chars]


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)


SummaryHook = Callable[[Sequence[Message]], str | Awaitable[str]]
"""The episode's messages, its last observation left out, to a summary of them. It may be a coroutine function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTrigger:
    """A summary is due once the context has this many tokens or shows this many turns, whichever comes first."""

    tokens: int | None
    turns: int | None

    def due(self, grown: ContextState) -> bool:
        long = self.tokens is not None and grown.context_length >= self.tokens
        return long or (self.turns is not None and len(grown.later) - grown.oldest >= self.turns)


class SummaryContext(FullContext):
    """Between two summaries lies at least one turn of the environment.

    The model's summary is sampled, so it is a turn of its own, an aside: trained like any other, with no reward of its
    own and no step of the environment. It is asked for before the newest observation is shown, which then opens the
    new context: a long one cannot crowd the summary out.
    """

    def __init__(
        self,
        renderer: Renderer,
        *,
        when: SummaryTrigger,
        prompt: str,
        max_tokens: int,
        writer: SummaryHook | None,
        keep_opening: bool,
    ) -> None:
        """`writer`: None asks the model, with `prompt` and at most `max_tokens` for its answer."""
        super().__init__(renderer)
        self._when, self._prompt, self._max_tokens = when, prompt, max_tokens
        self._writer, self._keep_opening = writer, keep_opening
        if writer is not None:
            self.builder = "the summary hook"

    async def next(self, pending: ContextState, turns: Sequence[Turn], messages: Sequence[Message]) -> ContextState:
        if pending.aside:
            return self._resumed(pending, turns[-1].message.content.rpartition("</think>")[2])
        grown = self._grown(pending, turns[-1], messages)
        if not self._when.due(grown):
            return grown
        if self._writer is None:
            return self._asked(pending, grown, turns[-1])
        return self._resumed(grown, await _written(self._writer, episode_messages(grown, turns)))

    def _asked(self, pending: ContextState, grown: ContextState, turn: Turn) -> ContextState:
        asked = self._appended(pending, turn, [user(self._prompt)])
        return replace(asked, later=grown.later, aside=True, max_new_tokens=self._max_tokens)

    def _resumed(self, pending: ContextState, summary: str) -> ContextState:
        text = f"Summary of the turns so far:\n{summary.strip() or 'none'}"
        opening = (
            *permanent_messages(pending.opening, self._keep_opening),
            *prepend_text(text, pending.later[-1].messages),
        )
        fresh = replace(pending, oldest=len(pending.later), aside=False, max_new_tokens=None)
        return self._restarted(fresh, opening)


def episode_messages(pending: ContextState, turns: Sequence[Turn]) -> list[Message]:
    """The whole episode in messages, up to the last action."""
    told = list(pending.opening.messages)
    for turn, shown in zip(turns, pending.later, strict=True):
        told += [turn.message, *shown.messages]
    return told[: len(told) - len(pending.later[-1].messages)]


async def _written(writer: SummaryHook, messages: Sequence[Message]) -> str:
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
