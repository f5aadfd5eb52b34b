"""Messages <-> token ids, append-only: `start` a context, `parse` what was sampled, `extend` it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from transformers import PreTrainedTokenizerFast

from turnwise.core.errors import UserError
from turnwise.core.messages import Message, ToolSpec, system, text_parts, tool_schema
from turnwise.core.token_name import TokenName
from turnwise.core.trajectory import Span, Stop
from turnwise.render.codec import Codec, added_tokens, backend_of, match_any
from turnwise.render.compiled_template import CompiledTemplate
from turnwise.render.parse import ParsedAction, parse_pieces
from turnwise.render.scaffold import after_turn_end, extend_parts, find_markers, start_parts
from turnwise.render.template import ChatTemplate, ConversationShape, RefusedError, conversation_shape

CACHED_SHAPES = 512
CACHED_ACTIONS = 4096
CACHED_ACTION_LENGTH = 64
"""Short actions come again and again; longer ones are read every time."""


@dataclass(frozen=True, slots=True)
class _Tools:
    """Tools as part of a cache's key: their schemas cannot be hashed, so what they say is."""

    key: str = ""
    specs: tuple[ToolSpec, ...] = field(default=(), compare=False)


class Renderer:
    """Speaks the chat format of one tokenizer, whose template it reads at the start and never again for a known shape.

        start(messages)          <bos> system user <prompt>                                mask 0
        ... sampled ...                                     a a a <end>                    mask 1
        extend(messages, stop)                                          \\n user <prompt>   mask 0

    Nothing that was sampled is ever decoded and encoded again. Messages that the template refuses are presented
    otherwise: a system message goes before the first user message, neighbouring user messages become one with a blank
    line between, a tool message becomes a user message. An assistant message given to `start` is shown as its content
    says. A date that the template writes is that of the day on which the shape was first rendered.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, stop_ids: Iterable[int] = (), prefix: str = "") -> None:
        """`stop_ids`: further ids that end a turn, such as those of the model's generation config.

        `prefix`: what every answer begins with; it is given, not sampled, so it is context (mask 0).
        """
        self._template = ChatTemplate(tokenizer)
        backend_of(tokenizer)
        self._markers = find_markers(self._template, match_any(added_tokens(tokenizer)), tokenizer.eos_token)
        self._codec = Codec(tokenizer, self._markers.delimiters)
        self._end = None if self._markers.end is None else self._codec.control[self._markers.end]
        self._turn_end = self._end.id if self._end is not None else tokenizer.eos_token_id
        ends = {tokenizer.eos_token_id, self._end.id if self._end else None, *stop_ids}
        self.stop_ids: frozenset[int] = frozenset(token for token in ends if token is not None)
        self._prefix, self._prefix_ids = prefix, self._codec.encode(prefix) if prefix else []
        self._parsed = lru_cache(maxsize=CACHED_ACTIONS)(self._parse)
        self._start_programs = lru_cache(maxsize=CACHED_SHAPES)(self._start_program)
        self._extend_programs = lru_cache(maxsize=CACHED_SHAPES)(self._extend_program)

    @cached_property
    def renders_tools(self) -> bool:
        """Does the chat template write the tools that it is given? One that refuses them does not."""
        probe = ToolSpec(name="probe_of_tools", description="", parameters={"type": "object", "properties": {}})
        asked = [{"role": "user", "content": "x"}]
        try:
            return probe.name in self._template.render(asked, tools=[tool_schema(probe)])
        except RefusedError:
            return False

    def can_fit(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """False where the messages have more characters than so many tokens can stand for. Nothing is encoded.

        Blanks around a message do not count: a template may strip them.
        """
        return sum(len(message.content.strip()) for message in messages) <= max_tokens * self._codec.longest_token

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), tools_in_words: str = "") -> list[int]:
        """The opening context, generation prompt included.

        `tools_in_words`: goes to the end of the system message where the template does not tell of the tools.
        """
        if tools and not self.renders_tools:
            messages, tools = with_system(messages, tools_in_words), ()
        known = _Tools(repr(tools), tuple(tools)) if tools else _Tools()
        return [*self._start_programs(conversation_shape(messages), known).ids(messages), *self._prefix_ids]

    def extend(self, messages: Sequence[Message], stop: Stop) -> list[int]:
        """What is appended to a sampled action: the rest of its turn, the messages, the generation prompt.

        After EOS the token that ends the turn was sampled (whichever of `stop_ids`), so only what follows it comes;
        after a stop string or at the length's limit it comes too.
        """
        return [*self._extend_programs(conversation_shape(messages), stop is Stop.EOS).ids(messages), *self._prefix_ids]

    def parse(self, ids: Sequence[int], stop: Stop) -> ParsedAction:
        """What an action says. `parse_pieces` tells which tokens a span holds."""
        ended = stop is Stop.EOS and len(ids) > 0 and ids[-1] in self.stop_ids
        said = tuple(ids[:-1] if ended else ids)
        return self._parsed(said) if len(said) <= CACHED_ACTION_LENGTH else self._parse(said)

    def answer(self, text: str) -> list[int]:
        """The ids of an answer that was written, its end included: as if a model had said it."""
        if not text.startswith(self._prefix):
            raise UserError(f"an answer does not begin with rollout.prefix {self._prefix!r}: {text[:80]!r}")
        text = text.removeprefix(self._prefix)
        if self._markers.opens_think:
            text = text.removeprefix("<think>") if text.startswith("<think>") else f"</think>{text}"
        return [*self._codec.encode(text), *([] if self._turn_end is None else [self._turn_end])]

    def decode(self, ids: Sequence[int]) -> str:
        """The exact text of any ids, special tokens included; bytes that are no UTF-8 become U+FFFD."""
        return self._codec.decode(ids)

    def name_token(self, token_id: int) -> TokenName:
        """How one id is written; bytes that are no whole character as \\xe4."""
        text = self._codec.pieces([token_id])[0].decode(errors="backslashreplace")
        return TokenName(id=token_id, text=text, special=token_id in self._codec.control_ids)

    def _parse(self, ids: tuple[int, ...]) -> ParsedAction:
        if not self._prefix:
            return parse_pieces(self._codec.pieces(ids), self._markers.opens_think)
        given = [self._prefix.encode(), *self._codec.pieces(ids)]
        parsed = parse_pieces(given, self._markers.opens_think)
        return replace(parsed, spans=tuple(sampled_span(span) for span in parsed.spans if span.end > 1))

    def _start_program(self, shape: ConversationShape, tools: _Tools) -> CompiledTemplate:
        parts = start_parts(self._template, shape, tools.specs, self._codec.added_pattern)
        return CompiledTemplate(self._codec, parts, before="nothing")

    def _extend_program(self, shape: ConversationShape, ended: bool) -> CompiledTemplate:
        parts = extend_parts(self._template, shape, self._markers.end)
        if not ended:
            return CompiledTemplate(self._codec, parts, before="text")
        swallows = self._end is not None and self._end.rstrip
        return CompiledTemplate(
            self._codec, after_turn_end(parts, self._markers.end), before="control", swallows=swallows
        )


def sampled_span(span: Span) -> Span:
    """Of a span over the prefix and what was sampled behind it, the sampled part: the prefix counts as one token."""
    return Span(name=span.name, start=max(0, span.start - 1), end=span.end - 1)


def with_system(messages: Sequence[Message], more: str) -> Sequence[Message]:
    """`more` as the end of the system message, or as one where there is none."""
    if not more:
        return messages
    if messages and messages[0].role == "system":
        return [replace(messages[0], parts=(*messages[0].parts, *text_parts(f"\n{more}"))), *messages[1:]]
    return [system(more), *messages]
