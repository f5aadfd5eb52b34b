"""Context modes: what the model sees of earlier turns. Sampled ids are never decoded and encoded again.

    full      s u a u a u a u a u a        one growing context
    window    s u a u a u a | s u a u A    restarts with the last turns, whose stored ids are spliced in
    turn      s u a | s m u A | s m u A    restarts every turn, with a text memory (m) of earlier turns
    summary   s u a u a q z | s z u A      grows, then asks (q) for a summary (z) and restarts with it

`|` starts a new context, which becomes its own segment. A repeated action (a) has mask 0 there, because it
is trained in the segment in which it was sampled; new actions (A) are trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from turnwise.core.messages import Message, text_parts, user
from turnwise.core.protocols import Completion, Observation
from turnwise.core.trajectory import Turn
from turnwise.render.parse import ParsedAction
from turnwise.render.renderer import Renderer

EMPTY_OBSERVATION = user("OK.")
"""Stands in for an empty observation: most chat templates need a message here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepObservation:
    """Observation that the environment returned from one step."""

    messages: tuple[Message, ...]
    ids: tuple[int, ...]
    """Ids that follow the turn's action: its closing scaffolding, the messages, the generation prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextState:
    """Ids to append before the next generation, and the history from which later contexts are built."""

    ids: tuple[int, ...]
    extends: bool
    context_length: int
    """Tokens that the model will see, including `ids`."""
    opening: Observation
    observations: tuple[StepObservation, ...] = ()
    """One per environment turn so far; the model now answers the last one."""
    first_shown: int = 0
    """First environment turn that the context shows in full."""
    is_summary: bool = False
    """The model is asked for a summary, and the environment is not stepped."""
    max_new_tokens: int | None = None
    """Token budget of a summary. None uses the budget of a turn."""


class Context(Protocol):
    """Context mode. Stateless: an episode's history is in its turns and the last `ContextState`."""

    @property
    def builder(self) -> str:
        """Name, in time-out errors, of what builds the next context."""
        ...

    def can_fit(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """Return False if these messages, which every mode shows in full, cannot fit into `max_tokens`."""
        ...

    def start(self, observation: Observation) -> ContextState: ...
    def parse(self, completion: Completion) -> ParsedAction: ...
    async def next(self, pending: ContextState, turns: Sequence[Turn], messages: Sequence[Message]) -> ContextState: ...


class FullContext:
    """Full history: the episode is one growing context and one segment."""

    builder = "the renderer"

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def can_fit(self, messages: Sequence[Message], max_tokens: int) -> bool:
        return self._renderer.can_fit(messages, max_tokens)

    def start(self, observation: Observation) -> ContextState:
        ids = tuple(self._renderer.start(observation.messages, observation.tools, observation.tools_in_words))
        return ContextState(ids=ids, extends=False, context_length=len(ids), opening=observation)

    def parse(self, completion: Completion) -> ParsedAction:
        return self._renderer.parse(completion.ids, completion.stop)

    async def next(self, pending: ContextState, turns: Sequence[Turn], messages: Sequence[Message]) -> ContextState:
        return self._grow(pending, turns[-1], messages)

    def _grow(self, pending: ContextState, turn: Turn, messages: Sequence[Message]) -> ContextState:
        """Append the environment's messages to the context."""
        grown = self._append(pending, turn, messages)
        return replace(
            grown, observations=(*pending.observations, StepObservation(messages=tuple(messages), ids=grown.ids))
        )

    def _append(self, pending: ContextState, turn: Turn, messages: Sequence[Message]) -> ContextState:
        ids = tuple(self._renderer.extend(messages, turn.stop))
        length = pending.context_length + len(turn.action_ids) + len(ids)
        return replace(pending, ids=ids, extends=True, context_length=length)

    def _restart(self, pending: ContextState, messages: Sequence[Message], tail: Sequence[int] = ()) -> ContextState:
        """Start a new context with these messages, followed by the stored ids `tail`."""
        opening = pending.opening
        ids = (*self._renderer.start(messages, opening.tools, opening.tools_in_words), *tail)
        return replace(pending, ids=ids, extends=False, context_length=len(ids))


def permanent_messages(opening: Observation, keep_opening: bool) -> tuple[Message, ...]:
    """Return what every context keeps: the system messages, or the whole opening if asked or if there are none."""
    system = tuple(message for message in opening.messages if message.role == "system")
    return opening.messages if keep_opening or not system else system


def prepend_text(text: str, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Put `text` before the messages, in the same user message if they start with one."""
    if not text:
        return tuple(messages) or (EMPTY_OBSERVATION,)
    if not messages or messages[0].role != "user":
        return (user(text), *messages)
    return (replace(messages[0], parts=(*text_parts(f"{text}\n\n"), *messages[0].parts)), *messages[1:])
