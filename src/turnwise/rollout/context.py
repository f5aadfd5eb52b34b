"""What the model sees of earlier turns. Whatever the mode, what was sampled is never tokenised again.

    full      s u a u a u a u a u a        one context that grows
    window    s u a u a u a | s u a u A    starts anew with the last turns, their sampled ids spliced in as they are
    turn      s u a | s m u A | s m u A    starts anew every turn, with a memory of the earlier ones in words
    summary   s u a u a q z | s z u A      grows, then asks (q) for a summary (z) and starts anew with it

`|` begins a new context, which becomes a segment of its own: an action that it repeats (a) is context there, with mask
0, since it was trained in the segment in which it was sampled; what is sampled in it (A) is trained there.
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
"""Opens a new context where the environment said nothing: most templates begin with something said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepObservation:
    """What the environment said after one of its turns."""

    messages: tuple[Message, ...]
    ids: tuple[int, ...]
    """As they follow that turn's action: the rest of its scaffolding, the messages, the generation prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextState:
    """What is appended before the model speaks next, and what later contexts of the episode are made from."""

    ids: tuple[int, ...]
    extends: bool
    context_length: int
    """Tokens that the model will see, `ids` included."""
    opening: Observation
    later: tuple[StepObservation, ...] = ()
    """After each turn of the environment so far, the last of them being what the model now answers."""
    oldest: int = 0
    """The first turn of the environment that the context shows as it was."""
    aside: bool = False
    """The model is asked for a summary: what it says is for its own context, and the environment is not stepped."""
    max_new_tokens: int | None = None
    """Of an aside: its budget; None: a turn's own."""


class Context(Protocol):
    """Stateless: what an episode has is in its turns and in the last `ContextState`."""

    @property
    def builder(self) -> str:
        """The name in errors of whatever `next` spends its time on."""
        ...

    def can_fit(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """Whether so many tokens may be enough for these messages, which the model is shown whole in any mode."""
        ...

    def start(self, observation: Observation) -> ContextState: ...
    def parse(self, completion: Completion) -> ParsedAction: ...
    async def next(self, pending: ContextState, turns: Sequence[Turn], messages: Sequence[Message]) -> ContextState: ...


class FullContext:
    """The whole episode is one growing context: one segment."""

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
        return self._grown(pending, turns[-1], messages)

    def _grown(self, pending: ContextState, turn: Turn, messages: Sequence[Message]) -> ContextState:
        """The context goes on with what the environment said."""
        grown = self._appended(pending, turn, messages)
        return replace(grown, later=(*pending.later, StepObservation(messages=tuple(messages), ids=grown.ids)))

    def _appended(self, pending: ContextState, turn: Turn, messages: Sequence[Message]) -> ContextState:
        ids = tuple(self._renderer.extend(messages, turn.stop))
        length = pending.context_length + len(turn.action_ids) + len(ids)
        return replace(pending, ids=ids, extends=True, context_length=length)

    def _restarted(self, pending: ContextState, messages: Sequence[Message], tail: Sequence[int] = ()) -> ContextState:
        """A new context: these messages, then `tail`, ids that follow them as they are stored."""
        opening = pending.opening
        ids = (*self._renderer.start(messages, opening.tools, opening.tools_in_words), *tail)
        return replace(pending, ids=ids, extends=False, context_length=len(ids))


def permanent_messages(opening: Observation, keep_opening: bool) -> tuple[Message, ...]:
    """What stays in every context: the system message, or all of the opening where asked or where there is none."""
    system = tuple(message for message in opening.messages if message.role == "system")
    return opening.messages if keep_opening or not system else system


def prepend_text(text: str, messages: Sequence[Message]) -> tuple[Message, ...]:
    """`text` before what the environment said, in one user message where that begins with one."""
    if not text:
        return tuple(messages) or (EMPTY_OBSERVATION,)
    if not messages or messages[0].role != "user":
        return (user(text), *messages)
    return (replace(messages[0], parts=(*text_parts(f"{text}\n\n"), *messages[0].parts)), *messages[1:])
