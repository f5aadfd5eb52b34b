"""Every turn a context of its own: the rules, a memory of earlier turns in words, this observation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from turnwise.core.messages import Message
from turnwise.core.trajectory import Turn
from turnwise.envs.answers import read_answer
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import FullHistory, Pending, Shown, prefaced, rules
from turnwise.tools.call_formats import strip_thinking

CUT = " [...] "


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
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
        did = f"{said(turn.message)}{' (invalid)' if turn.invalid else ''}{outcome}"
        if self.form == "actions":
            return f"Turn {number}: {did}"
        return "\n".join(part for part in (f"Turn {number}", seen, f"You: {did}") if part)

    def _bounded(self, entries: list[str]) -> list[str]:
        kept: list[str] = []
        left = self.chars
        for entry in reversed(entries):
            if kept and len(entry) > left:
                break
            kept.append(clipped(entry, left))
            left -= len(kept[-1]) + len(self._between)
        return kept[::-1]


class TurnMemory(FullHistory):
    """One segment a turn. The memory is plain text, encoded as content: nothing in it can become a special token."""

    def __init__(self, renderer: Renderer, *, memory: Memory, keep_opening: bool) -> None:
        super().__init__(renderer)
        self._memory, self._keep_opening = memory, keep_opening

    async def next(self, pending: Pending, turns: Sequence[Turn], messages: Sequence[Message]) -> Pending:
        always = rules(pending.opening, self._keep_opening)
        first = [message for message in pending.opening.messages if message not in always]
        seen = [_text(first), *(_text(shown.messages) for shown in pending.later)]
        memory = self._memory.tell(seen, turns)
        later = (*pending.later, Shown(messages=tuple(messages), ids=()))
        return self._restarted(replace(pending, later=later, oldest=len(turns)), (*always, *prefaced(memory, messages)))


def said(message: Message) -> str:
    """What an action comes to, on one line: its answer, or all that was said outside of the thinking."""
    answer = read_answer(message.content, several=False)
    spoken = strip_thinking(message.content)
    return " ".join((answer.actions[0] if answer.actions else spoken).split()) or "nothing"


def clipped(text: str, chars: int) -> str:
    """At most so many characters: the beginning and the end, where that is too few for all."""
    if len(text) <= chars:
        return text
    room = max(0, chars - len(CUT))
    head = room // 2
    return f"{text[:head]}{CUT}{text[len(text) - (room - head) :]}"[:chars]


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)
