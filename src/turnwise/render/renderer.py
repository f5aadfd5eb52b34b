"""Messages <-> token ids, append-only: `start` a context, `parse` what was sampled, `extend` the context."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import groupby
from operator import attrgetter

from transformers import PreTrainedTokenizerFast

from turnwise.concurrency.bounded_cache import BoundedCache
from turnwise.core.errors import UserError
from turnwise.core.images import count_images
from turnwise.core.messages import Message, ToolCall, ToolSpec, system, text_parts, tool_schema
from turnwise.core.trajectory import Span, Stop, TokenName
from turnwise.models.vision.processor import ImageProcessor
from turnwise.render.codec import Codec, added_tokens, backend_of, match_any
from turnwise.render.compiled_template import Before, CompiledTemplate
from turnwise.render.grammar import GrammarCompiler
from turnwise.render.parse import ParsedAction, parse_pieces, tokens_outside_thinking
from turnwise.render.scaffold import after_turn_end, call_parts, extend_parts, find_markers, start_parts
from turnwise.render.slots import TemplatePart
from turnwise.render.template import ChatTemplate, ConversationShape, RefusedError, conversation_shape

CACHED_SHAPES = 512
CACHED_SHAPE_LENGTH = 64
"""Messages; longer conversations are not cached."""
CACHED_STARTS_BYTES = 32 * 2**20
"""Memory for the scaffolding of initial contexts, which may have long tools."""
CACHED_ACTIONS = 4096
CACHED_ACTION_LENGTH = 64
"""Short actions repeat often; longer ones are not cached."""


class Renderer:
    """Renders the chat format of one tokenizer. The template runs once per conversation shape.

        start(messages)          <bos> system user <prompt>                                mask 0
        ... sampled ...                                     a a a <end>                    mask 1
        extend(messages, stop)                                          \\n user <prompt>   mask 0

    Sampled ids are never decoded and encoded again. Messages that the template refuses are presented differently: a
    system message moves into the first user message, consecutive user messages become one with a blank line between, a
    tool message becomes a user message. An assistant message in `start` is shown as its content. A date that the
    template writes is that of the day on which the shape was first rendered.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        stop_ids: Iterable[int] = (),
        prefix: str = "",
        images: ImageProcessor | None = None,
    ) -> None:
        """`stop_ids`: further ids that end a turn, such as those of the model's generation config.

        `prefix`: start of every answer; it is not sampled but context (mask 0). `images`: processor of a model that
        reads images, whose tokens are ids below 0 (`core/images.py`).
        """
        self.images = images
        self._template = ChatTemplate(tokenizer, None if images is None else images.marker)
        backend_of(tokenizer)
        self._markers = find_markers(self._template, match_any(added_tokens(tokenizer)), tokenizer.eos_token)
        self._codec = Codec(tokenizer, self._markers.delimiters)
        self._end = None if self._markers.end is None else self._codec.control[self._markers.end]
        self._turn_end = self._end.id if self._end is not None else tokenizer.eos_token_id
        ends = {tokenizer.eos_token_id, self._end.id if self._end else None, *stop_ids}
        self.stop_ids: frozenset[int] = frozenset(token for token in ends if token is not None)
        self._prefix, self._prefix_ids = prefix, self._codec.encode(prefix) if prefix else []
        self.grammars = GrammarCompiler(backend_of(tokenizer).to_str, self.stop_ids)
        """Constraints of what is sampled, in this tokenizer's tokens."""
        self._parsed = lru_cache(maxsize=CACHED_ACTIONS)(self._parse)
        self._starts = BoundedCache[CompiledTemplate](attrgetter("size_bytes"), CACHED_STARTS_BYTES)
        self._extensions = lru_cache(maxsize=CACHED_SHAPES)(self._compile_extension)

    @property
    def reads_images(self) -> bool:
        """Whether messages may contain images."""
        return self.images is not None

    @cached_property
    def renders_tools(self) -> bool:
        """Whether the chat template shows tools. False if it refuses them."""
        probe = ToolSpec(name="tool_probe", description="", parameters={"type": "object", "properties": {}})
        messages = [{"role": "user", "content": "x"}]
        try:
            return probe.name in self._template.render(messages, tools=[tool_schema(probe)])
        except RefusedError:
            return False

    @property
    def opens_thinking(self) -> bool:
        """Whether an answer starts inside of a <think> block that the context has opened."""
        return self._markers.opens_think or self._prefix.rfind("<think>") > self._prefix.rfind("</think>")

    def split_added(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield the pieces of a text, with the id of those that are a single token wherever they occur."""
        yield from self._codec.split_added(text)

    def can_fit(self, messages: Sequence[Message], max_tokens: int, tools: Sequence[ToolSpec] = ()) -> bool:
        """Return False if the texts have more characters than `max_tokens` can represent, without encoding them.

        Whitespace around a message does not count: a template may strip it. Nor do schemas, which it may abbreviate.
        """
        chars = sum(len(message.content.strip()) for message in messages)
        chars += sum(
            len(call.name) + len(call.arguments.strip()) for message in messages for call in message.tool_calls
        )
        chars += sum(len(tool.name) + len(tool.description.strip()) for tool in tools)
        return chars <= max_tokens * self._codec.longest_token

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), tools_in_words: str = "") -> list[int]:
        """Return the ids of the initial context, generation prompt included.

        `tools_in_words`: appended to the system message if the template does not show tools.
        """
        if tools and not self.renders_tools:
            messages, tools = with_system(messages, tools_in_words), ()
        shape = self._shape(messages)
        if len(shape) > CACHED_SHAPE_LENGTH:
            return [*self._compile_start(shape, tools).ids(messages), *self._prefix_ids]
        name = sha256(repr((shape, *tools)).encode(errors="surrogatepass")).hexdigest()
        compiled = self._starts.get(name)
        if compiled is None:
            compiled = self._compile_start(shape, tools)
            self._starts.put(name, compiled)
        return [*compiled.ids(messages), *self._prefix_ids]

    def extend(self, messages: Sequence[Message], stop: Stop) -> list[int]:
        """Return the ids to append to a sampled action: the end of its turn, the messages, the generation prompt.

        After EOS the token that ends the turn was sampled (any of `stop_ids`), so it is not repeated; after a stop
        string or at the token limit it is included.
        """
        shape = self._shape(messages)
        compile_shape = self._extensions if len(shape) <= CACHED_SHAPE_LENGTH else self._compile_extension
        return [*compile_shape(shape, stop is Stop.EOS).ids(messages), *self._prefix_ids]

    def _shape(self, messages: Sequence[Message]) -> ConversationShape:
        if not self.reads_images and any(message.images for message in messages):
            raise UserError(
                "The model reads text only, and the messages contain an image. Use a vision-language model such as "
                "tiny_vlm, or observations without images (env.params.observation text)."
            )
        return conversation_shape(messages)

    def parse(self, ids: Sequence[int], stop: Stop) -> ParsedAction:
        """Parse an action. See `parse_pieces` for the tokens of a span."""
        action = self._without_end(ids, stop)
        return self._parsed(action) if len(action) <= CACHED_ACTION_LENGTH else self._parse(action)

    def drop_thinking(self, ids: Sequence[int], stop: Stop) -> list[int] | None:
        """Return a sampled action without the tokens of its thinking. See `tokens_outside_thinking`."""
        action = self._without_end(ids, stop)
        kept = tokens_outside_thinking(self._codec.pieces(action), self.opens_thinking)
        return None if kept is None else [*(action[index] for index in kept), *ids[len(action) :]]

    def _without_end(self, ids: Sequence[int], stop: Stop) -> tuple[int, ...]:
        ended = stop is Stop.EOS and len(ids) > 0 and ids[-1] in self.stop_ids
        return tuple(ids[:-1] if ended else ids)

    def answer(self, text: str) -> list[int]:
        """Encode a written answer, its end of turn included, as if the model had sampled it."""
        if not text.startswith(self._prefix):
            raise UserError(
                f"The answer {text[:80]!r} does not start with rollout.prefix {self._prefix!r}: change one of them."
            )
        text = text.removeprefix(self._prefix)
        if self._markers.opens_think:
            text = text.removeprefix("<think>") if text.startswith("<think>") else f"</think>{text}"
        return self._with_turn_end(self._codec.encode(text))

    def answer_with_calls(self, text: str, calls: Sequence[ToolCall]) -> list[int] | None:
        """Encode an answer with tool calls as the template shows them; None if it does not show calls.

        Also None where the template does not continue its generation prompt with the answer, as if it opens a <think>
        block there, and with `prefix`.
        """
        if self._prefix or self._markers.opens_think:
            return None
        message = Message(role="assistant", parts=text_parts(text), tool_calls=tuple(calls))
        parts = call_parts(self._template, message, self._codec.added_pattern, self._markers.end)
        if parts is None:
            return None
        return self._with_turn_end(CompiledTemplate(self._codec, parts, before="text").ids([message]))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the exact text of any ids, special tokens included; invalid UTF-8 becomes U+FFFD.

        An image becomes the text of the token that the processor repeats for it, once.
        """
        if self.images is None or min(ids, default=0) >= 0:
            return self._codec.decode(ids)
        decoded = ""
        for is_text, group in groupby(ids, key=lambda token: token >= 0):
            tokens = list(group)
            decoded += self._codec.decode(tokens) if is_text else self.images.placeholder * count_images(tokens)
        return decoded

    def name_token(self, token_id: int) -> TokenName:
        """Return the text of one id; bytes that are not a whole character are written as \\xe4."""
        if token_id < 0 and self.images is not None:
            return TokenName(id=token_id, text=self.images.placeholder, special=True)
        text = self._codec.pieces([token_id])[0].decode(errors="backslashreplace")
        return TokenName(id=token_id, text=text, special=token_id in self._codec.control_ids)

    def _with_turn_end(self, ids: Sequence[int]) -> list[int]:
        return [*ids, *([] if self._turn_end is None else [self._turn_end])]

    def _parse(self, ids: tuple[int, ...]) -> ParsedAction:
        if not self._prefix:
            return parse_pieces(self._codec.pieces(ids), self._markers.opens_think)
        pieces = [self._prefix.encode(), *self._codec.pieces(ids)]
        parsed = parse_pieces(pieces, self._markers.opens_think)
        return replace(parsed, spans=tuple(sampled_span(span) for span in parsed.spans if span.end > 1))

    def _compile_start(self, shape: ConversationShape, tools: Sequence[ToolSpec]) -> CompiledTemplate:
        parts = start_parts(self._template, shape, tools, self._codec.added_pattern)
        return self._compile(parts, before="nothing")

    def _compile(self, parts: Sequence[TemplatePart], before: Before, swallows: bool = False) -> CompiledTemplate:
        return CompiledTemplate(
            self._codec, parts, before, swallows, encode_image=None if self.images is None else self.images.ids
        )

    def _compile_extension(self, shape: ConversationShape, ended: bool) -> CompiledTemplate:
        parts = extend_parts(self._template, shape, self._markers.end)
        if not ended:
            return self._compile(parts, before="text")
        swallows = self._end is not None and self._end.rstrip
        return self._compile(after_turn_end(parts, self._markers.end), before="control", swallows=swallows)


def sampled_span(span: Span) -> Span:
    """Return the sampled part of a span over the prefix, which counts as one token, and the sampled tokens."""
    return Span(name=span.name, start=max(0, span.start - 1), end=span.end - 1)


def with_system(messages: Sequence[Message], more: str) -> Sequence[Message]:
    """Append `more` to the system message, or add one."""
    if not more:
        return messages
    if messages and messages[0].role == "system":
        return [replace(messages[0], parts=(*messages[0].parts, *text_parts(f"\n{more}"))), *messages[1:]]
    return [system(more), *messages]
