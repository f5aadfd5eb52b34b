"""What the model sees of earlier turns. Every mode appends or splices stored ids; none tokenises again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from turnwise.core.messages import Message
from turnwise.core.protocols import Completion, Observation
from turnwise.core.trajectory import Turn
from turnwise.render.parse import Parsed
from turnwise.render.renderer import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What is appended before the model speaks next."""

    ids: tuple[int, ...]
    extends: bool
    context_length: int
    """Tokens that the model will see, `ids` included."""


class Context(Protocol):
    def start(self, observation: Observation) -> Pending: ...
    def parse(self, completion: Completion) -> Parsed: ...
    async def next(self, pending: Pending, turns: Sequence[Turn], messages: Sequence[Message]) -> Pending: ...


class FullHistory:
    """The whole episode is one growing context: one segment."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def start(self, observation: Observation) -> Pending:
        ids = tuple(self._renderer.start(observation.messages, observation.tools))
        return Pending(ids=ids, extends=False, context_length=len(ids))

    def parse(self, completion: Completion) -> Parsed:
        return self._renderer.parse(completion.ids, completion.stop)

    async def next(self, pending: Pending, turns: Sequence[Turn], messages: Sequence[Message]) -> Pending:
        ids = tuple(self._renderer.extend(messages, turns[-1].stop))
        length = pending.context_length + len(turns[-1].action_ids) + len(ids)
        return Pending(ids=ids, extends=True, context_length=length)
