"""Grammars of replies: JSON by a schema, or one tool call as the chat template writes it. See `render/grammar.py`.

    start: json | call                                        JSON, or a call if the request offers tools as well
    json: %json {"type": "object", ...}
    call: <[457]> "{\\"name\\": \\"add\\", \\"arguments\\": " arguments_0 "}" <[458]>
    arguments_0: %json {...}

The reply is nothing else: no thinking, no text beside it. If the generation prompt opens a <think> block, the reply
first closes it.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from turnwise.core.constraint import Constraint, ConstraintError
from turnwise.core.messages import ToolCall, ToolSpec
from turnwise.core.protocols import Completion
from turnwise.core.trajectory import Stop
from turnwise.gateway.chat import ReplyRule, RequestError
from turnwise.gateway.reading import ReplyText
from turnwise.render.renderer import Renderer
from turnwise.render.slots import inside_json
from turnwise.tools.call_formats import THINK_END, parse_calls

PROBE = ToolCall(name="turnwise_probe", arguments='{"probed": 0}')
HERMES_CALL = ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
"""Description of calls for models whose template does not show them."""
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Options of llguidance. White space is that of `json.dumps`: an endless run of it would be valid too."""
WALKED = ("properties", "$defs", "definitions")
WALKED_LISTS = ("anyOf", "prefixItems")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """Text before a call's name, between its name and its arguments, and after them."""

    before: str
    between: str
    after: str

    def read(self, text: str, tools: Sequence[ToolSpec]) -> ToolCall | None:
        """Return the call that this text is; None if it is none. Text in the arguments may be anything."""
        for tool in tools:
            start = f"{self.before}{inside_json(tool.name)}{self.between}"
            if text.startswith(start) and text.endswith(self.after):
                return ToolCall(name=tool.name, arguments=text[len(start) : len(text) - len(self.after)])
        return None


@lru_cache(maxsize=16)
def call_format(renderer: Renderer) -> CallFormat:
    """Return how the chat template writes a call; the Hermes format if it shows none that the gateway parses."""
    ids = renderer.answer_with_calls("", [PROBE])
    text = "" if ids is None else renderer.decode(ids[:-1])
    before, probe_name, rest = text.partition(PROBE.name)
    between, also_found, after = rest.partition(PROBE.arguments)
    styles = ("hermes", "llama", "mistral")
    parsed = [call for style in styles for call in parse_calls(text, style).calls if call.arguments == PROBE.arguments]
    if probe_name and also_found and parsed:
        return CallFormat(before=before.lstrip(), between=between, after=after.rstrip())
    return CallFormat(before=HERMES_CALL[0], between=HERMES_CALL[1], after=HERMES_CALL[2])


def read_ruled_reply(rule: ReplyRule | None, completion: Completion, renderer: Renderer) -> ReplyText | None:
    """Return a constrained reply by its grammar: tags in its JSON are text. None if it is not a whole one."""
    if completion.constraint is None or completion.stop is not Stop.EOS:
        return None
    text = renderer.decode(completion.ids[:-1])
    if renderer.opens_thinking:
        text = text.partition(THINK_END)[2].lstrip()
    call = None if rule is None else call_format(renderer).read(text, rule.tools)
    if call is not None:
        return ReplyText(thinking="", content="", calls=(replace(call, call_id="call00000"),), stop_string="")
    if rule is None or rule.schema is None:
        return None
    return ReplyText(thinking="", content=text, calls=(), stop_string="")


def build_constraint(rule: ReplyRule, renderer: Renderer) -> Constraint:
    """Return the constraint of a reply."""
    rules = [f"start: {' '.join([*_closed_thinking(renderer), 'reply'])}"]
    replies = ["json"] if rule.schema is not None else []
    if rule.tools:
        replies.append("call")
    rules.append(f"reply: {' | '.join(replies)}")
    if rule.schema is not None:
        rules.append(f"json: {_json_rule(rule.schema)}")
    if rule.tools:
        rules.append(f"call: {' | '.join(f'call_{number}' for number in range(len(rule.tools)))}")
        rules += [line for number, tool in enumerate(rule.tools) for line in _call_rules(number, tool, renderer)]
    return Constraint(grammar="\n".join(rules))


def _closed_thinking(renderer: Renderer) -> list[str]:
    return [*_terms(THINK_END, renderer), json.dumps("\n\n")] if renderer.opens_thinking else []


def _call_rules(number: int, tool: ToolSpec, renderer: Renderer) -> Iterator[str]:
    form = call_format(renderer)
    start = _terms(f"{form.before}{inside_json(tool.name)}{form.between}", renderer)
    yield f"call_{number}: {' '.join([*start, f'arguments_{number}', *_terms(form.after, renderer)])}"
    yield f"arguments_{number}: {_json_rule(tool.parameters)}"


def _terms(text: str, renderer: Renderer) -> Iterator[str]:
    """Yield literals, and the ids of tokens that are always whole, such as <tool_call> in many vocabularies."""
    for piece, token in renderer.split_added(text):
        yield f"<[{token}]>" if token is not None else json.dumps(piece, ensure_ascii=False)


def _json_rule(schema: Mapping[str, Any]) -> str:
    closed = dict(schema) if "allOf" in json.dumps(schema) else _close(schema)
    return f"%json {json.dumps({**closed, 'x-guidance': JSON_STYLE}, ensure_ascii=False)}"


def _close(schema: Any) -> Any:
    """Return the schema without properties that it does not name, which it allows unless it says otherwise.

    Models would write them only because the grammar lets them. Parts of `allOf` are left open: each would forbid the
    properties of the others.
    """
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    if schema.get("properties"):
        closed.setdefault("additionalProperties", False)
    for name in WALKED:
        if isinstance(schema.get(name), dict):
            closed[name] = {key: _close(value) for key, value in schema[name].items()}
    for name in WALKED_LISTS:
        if isinstance(schema.get(name), list):
            closed[name] = [_close(value) for value in schema[name]]
    if "items" in schema:
        closed["items"] = _close(schema["items"])
    return closed


_compiler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
"""One thread: requests with hostile schemas wait for each other, not everyone for them."""


async def compile_rule(rule: ReplyRule, renderer: Renderer) -> Constraint:
    """Return the constraint of a reply, compiled. Raises RequestError if it cannot be enforced."""

    def compiled() -> Constraint:
        if rule.schema is not None:
            _check_schema(_json_rule(rule.schema), renderer)
        for tool in rule.tools:
            try:
                _check_schema(_json_rule(tool.parameters), renderer)
            except ConstraintError as error:
                raise ConstraintError(f"the parameters of {tool.name[:80]!r}: {error}") from error
        constraint = build_constraint(rule, renderer)
        renderer.grammars.matcher(constraint)
        return constraint

    try:
        return await asyncio.get_running_loop().run_in_executor(_compiler, compiled)
    except (ConstraintError, RecursionError) as error:
        raise refusal(rule, error) from error


@lru_cache(maxsize=256)
def _check_schema(json_rule: str, renderer: Renderer) -> None:
    """Raise ConstraintError if the schema alone is invalid: beside other rules, one without any value is not seen."""
    renderer.grammars.compile(Constraint(grammar=f"start: {json_rule}"))


def refusal(rule: ReplyRule, error: Exception) -> RequestError:
    """Return the error for a rule that cannot be enforced."""
    return RequestError(rule.setting, f"cannot be enforced: {error}")
