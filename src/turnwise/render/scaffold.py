"""What a chat template writes around messages, derived from the template itself, never from a model's name.

A conversation's shape (its roles, and which contents are empty) is rendered once with a mark in the place of every
content; the text between the marks is the scaffolding:

    <|im_start|>user\\n  z700c000z  <|im_end|>\\n<|im_start|>assistant\\n
    scaffolding        slot       scaffolding

What follows an action is rendered after a stand-in conversation of one user and one assistant message and cut off
behind it, so nothing that stands only at the beginning (a default system prompt, a date) can come again.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.messages import ToolSpec, tool_schema
from turnwise.render.template import (
    HOW_TO_FIX,
    ChatTemplate,
    ConversationShape,
    Placeholders,
    ProbeSetting,
    RefusedError,
    TemplatePart,
    TemplateProbe,
    after_lead,
    arrangements,
)

THINK = "<think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMarkers:
    """How the template tells turns apart."""

    end: str | None
    """The token that ends an assistant's turn; None where the template has none."""
    delimiters: frozenset[str]
    """Added tokens between turns, `end` among them, whether the tokenizer calls them special or not."""
    opens_think: bool
    """The generation prompt already opens a <think> block."""


def start_parts(
    template: ChatTemplate, shape: ConversationShape, tools: Sequence[ToolSpec], control: re.Pattern[str]
) -> tuple[TemplatePart, ...]:
    """An opening context with its generation prompt. What `control` matches in the tools' texts is quoted."""
    schemas = [tool_schema(spec) for spec in tools]
    marks = Placeholders(avoid=repr(schemas))
    quoted: list[str] = []
    schemas = [_quote(schema, control, marks, quoted) for schema in schemas]
    return _first_accepted(template, [ProbeSetting(marks=marks, tools=schemas, quoted=quoted)], shape)


def extend_parts(template: ChatTemplate, shape: ConversationShape, end: str | None = None) -> tuple[TemplatePart, ...]:
    """All that follows an action's text: the turn's end, the messages, the generation prompt.

    Some templates take a tool message only after an assistant message that calls, and show the call behind its text;
    there the turn's end is found by its token.
    """
    marks = Placeholders()
    settings = [ProbeSetting(marks=marks, lead=_lead(marks))]
    if end is not None and any(role == "tool" for role, _ in shape):
        settings.append(ProbeSetting(marks=marks, lead=_lead(marks, calls=True), resume_at=end))
    return _first_accepted(template, settings, shape)


def after_turn_end(parts: tuple[TemplatePart, ...], end: str | None) -> tuple[TemplatePart, ...]:
    """What is left to append when the turn's end was sampled."""
    if end is None or not parts or not isinstance(parts[0], str) or end not in parts[0]:
        return parts
    return (parts[0].partition(end)[2], *parts[1:])


def find_markers(template: ChatTemplate, added: re.Pattern[str], eos: str | None) -> TurnMarkers:
    """Reads the turn's end and the delimiters off one exchange. `added` matches the tokenizer's added tokens."""
    parts = extend_parts(template, (("user", True),))
    header, footer = (part if isinstance(part, str) else "" for part in (parts[0], parts[-1]))
    found = added.findall(header) + added.findall(footer.partition(THINK)[0])
    end = _turn_end(template, header, added, eos)
    return TurnMarkers(
        end=end,
        delimiters=frozenset(token for token in (*found, end) if token and (token == end or not token.isalnum())),
        opens_think=footer.rfind(THINK) > footer.rfind("</think>"),
    )


def _turn_end(template: ChatTemplate, header: str, added: re.Pattern[str], eos: str | None) -> str | None:
    """The first added token after an assistant's text where nothing follows it, or the eos between two turns."""
    setting = ProbeSetting(marks=(marks := Placeholders()), lead=_lead(marks))
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
    """The first arrangement that shows everything. A message that happens to be empty does not make a role accepted."""
    reasons = []
    full = tuple((role, True) for role, _ in shape)
    for placed in arrangements([role for role, _ in shape]):
        for setting in settings:
            try:
                parts = TemplateProbe(template, setting, full, placed).parts()
                return parts if shape == full else TemplateProbe(template, setting, shape, placed).parts()
            except RefusedError as refused:
                reasons.append(str(refused))
    roles = ", ".join(role for role, _ in shape)
    raise UserError(f"the chat template refuses the messages [{roles}]: {reasons[0]}; {HOW_TO_FIX}")


def _lead(marks: Placeholders, calls: bool = False) -> list[dict[str, Any]]:
    """A stand-in for all that came before: one question and one answer, with a call where asked."""
    answer: dict[str, Any] = {"role": "assistant", "content": marks("a")}
    if calls:
        function = {"name": marks("a"), "arguments": {marks("a"): marks("a")}}
        answer["tool_calls"] = [{"id": marks("x"), "type": "function", "function": function}]
    return [{"role": "user", "content": marks("u")}, answer]


def _quote(value: Any, control: re.Pattern[str], marks: Placeholders, quoted: list[str]) -> Any:
    """`value` with a mark in the place of every control token in its strings, noted in `quoted`."""
    if isinstance(value, str):

        def note(match: re.Match[str]) -> str:
            quoted.append(match[0])
            return marks("t", len(quoted) - 1)

        return control.sub(note, value)
    if isinstance(value, Mapping):
        return {
            _quote(key, control, marks, quoted): _quote(item, control, marks, quoted) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_quote(item, control, marks, quoted) for item in value]
    return value
