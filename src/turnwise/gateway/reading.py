"""Sampled text as a chat reply: thinking, content, tool calls in any format that models use."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from turnwise.core.messages import ToolCall, ToolSpec
from turnwise.core.protocols import Completion
from turnwise.core.trajectory import Stop
from turnwise.render.parse import ParsedAction
from turnwise.tools.call_formats import (
    HERMES,
    LLAMA_TAG,
    MISTRAL_TAG,
    THINK_START,
    parse_calls,
    remove_calls,
    split_thinking,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyText:
    """Parts of a sampled text."""

    thinking: str
    content: str
    calls: tuple[ToolCall, ...]
    """Numbered call00000, call00001, ... as in the rendered context."""
    stop_string: str
    """String that ended it; empty if none did."""


def read_reply(
    completion: Completion, parsed: ParsedAction, tools: Sequence[ToolSpec], stop: Sequence[str]
) -> ReplyText:
    """Split the sampled text. Calls are only looked for if the request has tools; malformed ones remain content."""
    text, stop_string = _with_think_start(parsed), ""
    if completion.stop is Stop.STRING:
        occurrences = [(at, candidate) for candidate in stop if (at := text.find(candidate)) >= 0]
        end, stop_string = min(occurrences, default=(len(text), ""))
        text = text[:end]
    thinking, answer = split_thinking(text)
    style = _call_style(answer) if tools else None
    calls = tuple(map(_encodable, parse_calls(answer, style).calls)) if style is not None else ()
    content = remove_calls(answer, style) if calls and style is not None else answer
    content = content.strip() if calls or thinking else content
    return ReplyText(thinking=thinking, content=content, calls=calls, stop_string=stop_string)


def _encodable(call: ToolCall) -> ToolCall:
    """Replace unpaired surrogates, which a model can write as JSON escapes."""
    name, arguments = (text.encode(errors="replace").decode() for text in (call.name, call.arguments))
    return replace(call, name=name, arguments=arguments)


def _with_think_start(parsed: ParsedAction) -> str:
    """Return the text, with the <think> that the generation prompt has opened."""
    text = parsed.message.content
    first = parsed.spans[0] if parsed.spans else None
    opened = first is not None and first.name == "think" and first.start == 0
    return f"{THINK_START}{text}" if opened and not text.lstrip().startswith(THINK_START) else text


def _call_style(answer: str) -> str | None:
    """Return the format of the calls in an answer, recognised by its markup."""
    if HERMES.search(answer):
        return "hermes"
    if MISTRAL_TAG in answer:
        return "mistral"
    return "llama" if answer.lstrip().startswith((LLAMA_TAG, "{")) else None
