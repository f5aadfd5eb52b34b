"""The text that a chat template writes around messages, derived from the template itself, never from a model's name.

A conversation's shape (its roles, and which contents are empty) is rendered once with a placeholder for every content;
the text between the placeholders is the scaffolding:

    <|im_start|>user\\n  z700c000z  <|im_end|>\\n<|im_start|>assistant\\n
    scaffolding        slot       scaffolding

What follows an action is rendered after a dummy conversation of one user and one assistant message that is cut off, so
nothing that belongs only at the beginning (a default system prompt, a date) is repeated.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.messages import Message, ToolSpec, tool_schema
from turnwise.render.slots import ContentSlot, LiteralSlot, TemplatePart
from turnwise.render.template import (
    HOW_TO_FIX,
    ChatTemplate,
    ConversationShape,
    Placeholders,
    ProbeSetting,
    RefusedError,
    TemplateProbe,
    after_lead,
    arrangements,
)

THINK = "<think>"
SHOWN_ROLES = 12
"""Number of roles in an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMarkers:
    """Token ids with which the template delimits turns."""

    end: str | None
    """Token that ends an assistant's turn; None if the template has none."""
    delimiters: frozenset[str]
    """Added tokens between turns, `end` included, whether or not the tokenizer placeholders them as special."""
    opens_think: bool
    """Whether the generation prompt opens a <think> block."""


def start_parts(
    template: ChatTemplate, shape: ConversationShape, tools: Sequence[ToolSpec], control: re.Pattern[str]
) -> tuple[TemplatePart, ...]:
    """Return an initial context with its generation prompt. Matches of `control` in tools' texts become literals."""
    schemas = [tool_schema(spec) for spec in tools]
    placeholders = Placeholders(avoid=repr(schemas))
    quoted: list[str] = []
    schemas = [_quote(schema, control, placeholders, quoted) for schema in schemas]
    return _first_accepted(template, [ProbeSetting(placeholders=placeholders, tools=schemas, quoted=quoted)], shape)


def extend_parts(template: ChatTemplate, shape: ConversationShape, end: str | None = None) -> tuple[TemplatePart, ...]:
    """Return what follows an action's text: the end of the turn, the messages, the generation prompt.

    Some templates accept a tool message only after an assistant message with a call, which they show after its text;
    the end of the turn is then located by its token.
    """
    placeholders = Placeholders()
    settings = [ProbeSetting(placeholders=placeholders, lead=_lead(placeholders))]
    if end is not None and any(role == "tool" for role, _ in shape):
        settings.append(ProbeSetting(placeholders=placeholders, lead=_lead(placeholders, calls=True), resume_at=end))
    return _first_accepted(template, settings, shape)


def call_parts(
    template: ChatTemplate, message: Message, control: re.Pattern[str], end: str | None
) -> tuple[TemplatePart, ...] | None:
    """Return an assistant message with calls as the template shows it, between the generation prompt and `end`.

    None if the template does not show the calls, or not after its generation prompt.
    """
    functions = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in message.tool_calls]
    placeholders = Placeholders(avoid=repr(functions))
    quoted: list[str] = []
    calls = [
        {"id": call.call_id, "type": "function", "function": _quote(function, control, placeholders, quoted)}
        for call, function in zip(message.tool_calls, functions, strict=True)
    ]
    question = {"role": "user", "content": placeholders("u")}
    answer = {"role": "assistant", "content": placeholders("c") if message.content else "", "tool_calls": calls}
    try:
        prompt, shown = template.render([question]), template.render([question, answer], prompt=False)
    except RefusedError:
        return None
    body = shown.removeprefix(prompt)
    if body == shown or not all(call.name in body for call in message.tool_calls):
        return None
    body = body.rpartition(end)[0] if end is not None and end in body else body
    fillers: dict[str, TemplatePart] = {placeholders("c"): ContentSlot((0,))}
    fillers |= {placeholders("t", number): LiteralSlot(word) for number, word in enumerate(quoted)}
    return tuple(fillers.get(piece, piece) for piece in placeholders.pattern.split(body) if piece)


def after_turn_end(parts: tuple[TemplatePart, ...], end: str | None) -> tuple[TemplatePart, ...]:
    """Return what to append if the end of the turn was sampled."""
    if end is None or not parts or not isinstance(parts[0], str) or end not in parts[0]:
        return parts
    return (parts[0].partition(end)[2], *parts[1:])


def find_markers(template: ChatTemplate, added: re.Pattern[str], eos: str | None) -> TurnMarkers:
    """Find the end of turn and the delimiters in one exchange. `added` matches the tokenizer's added tokens."""
    parts = extend_parts(template, (("user", True),))
    header, footer = (part if isinstance(part, str) else "" for part in (parts[0], parts[-1]))
    special = added.findall(header) + added.findall(footer.partition(THINK)[0])
    end = _turn_end(template, header, added, eos)
    return TurnMarkers(
        end=end,
        delimiters=frozenset(token for token in (*special, end) if token and (token == end or not token.isalnum())),
        opens_think=footer.rfind(THINK) > footer.rfind("</think>"),
    )


def _turn_end(template: ChatTemplate, header: str, added: re.Pattern[str], eos: str | None) -> str | None:
    """Return the first added token after the last assistant text, or the eos token between two turns."""
    setting = ProbeSetting(placeholders=(placeholders := Placeholders()), lead=_lead(placeholders))
    try:
        last = added.search(after_lead(template.render(setting.lead, prompt=False), setting))
    except RefusedError:
        last = None
    if last is not None:
        return last[0]
    between = added.search(header)
    return eos if between is not None and between[0] == eos else None


def _first_accepted(
    template: ChatTemplate, settings: Sequence[ProbeSetting], shape: ConversationShape
) -> tuple[TemplatePart, ...]:
    """Return the first arrangement that shows everything, checked with content in all messages."""
    reasons = []
    full = tuple((role, content or True) for role, content in shape)
    for arranged in arrangements([role for role, _ in shape]):
        for setting in settings:
            try:
                parts = TemplateProbe(template, setting, full, arranged).parts()
                return parts if shape == full else TemplateProbe(template, setting, shape, arranged).parts()
            except RefusedError as refused:
                reasons.append(str(refused))
    shown = [role for role, _ in shape[:SHOWN_ROLES]] + ["..."] * (len(shape) > SHOWN_ROLES)
    raise UserError(f"The chat template refuses the messages [{', '.join(shown)}] ({reasons[0]}): {HOW_TO_FIX}")


def _lead(placeholders: Placeholders, calls: bool = False) -> list[dict[str, Any]]:
    """Return a dummy for the context before: one question and one answer, with a call if requested."""
    answer: dict[str, Any] = {"role": "assistant", "content": placeholders("a")}
    if calls:
        function = {"name": placeholders("a"), "arguments": {placeholders("a"): placeholders("a")}}
        answer["tool_calls"] = [{"id": placeholders("x"), "type": "function", "function": function}]
    return [{"role": "user", "content": placeholders("u")}, answer]


def _quote(value: Any, control: re.Pattern[str], placeholders: Placeholders, quoted: list[str]) -> Any:
    """Replace control tokens in the strings of `value` by placeholders, and append them to `quoted`."""
    if isinstance(value, str):

        def replace(match: re.Match[str]) -> str:
            quoted.append(match[0])
            return placeholders("t", len(quoted) - 1)

        return control.sub(replace, value)
    if isinstance(value, Mapping):
        return {
            _quote(key, control, placeholders, quoted): _quote(item, control, placeholders, quoted)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_quote(item, control, placeholders, quoted) for item in value]
    return value
