"""Rules that a request sets for its reply: JSON that matches a schema, or the call of a tool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.core.messages import ToolSpec
from turnwise.gateway.chat import ReplyRule, RequestError
from turnwise.gateway.fields import read_list, read_object, read_text

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
"""Schema of `json_object`."""
FREE_CHOICES = (None, "", "auto", "none")
"""Values of `tool_choice` that demand no call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Tools that a request offers, and those of which one must be called."""

    setting: str
    """Name of the setting, for errors."""
    tools: tuple[ToolSpec, ...]
    """Tools that the model sees; none if the choice is "none"."""
    required: tuple[ToolSpec, ...] = ()
    """Empty: the model need not call any."""


def read_format(value: Any, param: str) -> Mapping[str, Any] | None:
    """Return the schema of the reply; None if it may be any text. Raises RequestError.

    OpenAI's Chat Completions put the schema into an object of its own, the other dialects beside the type.
    """
    if value is None:
        return None
    row = read_object(value, param)
    match row.get("type"):
        case "text":
            return None
        case "json_object":
            return ANY_OBJECT
        case "json_schema":
            inner, name = (row["json_schema"], f"{param}.json_schema") if "json_schema" in row else (row, param)
            return read_object(read_object(inner, name).get("schema"), f"{name}.schema")
    raise RequestError(f"{param}.type", f"{row.get('type')!r} is not supported: use text, json_object or json_schema")


def read_choice(value: Any, param: str, tools: Sequence[ToolSpec]) -> ToolChoice:
    """Return the tools that a request may or must call. Raises RequestError. `value`: in the form of any dialect."""
    if isinstance(value, dict) and value.get("type") in ("auto", "none", "any"):  # Anthropic
        value = "required" if value["type"] == "any" else value["type"]
    if value in FREE_CHOICES:
        return ToolChoice(setting=param, tools=() if value == "none" else tuple(tools))
    if value == "required":
        return _require(param, tools, tools)
    row = read_object(value, param)
    match row.get("type"):
        case "function" | "custom" | "tool" as kind:
            return _require(param, tools, _named([row.get(kind, row)], param, tools))
        case "allowed_tools":
            allowed = read_object(row.get("allowed_tools", row), param)
            rows = [read_object(item, f"{param}.tools") for item in read_list(allowed, "tools")]
            chosen = _named([row.get("function", row) for row in rows], param, tools)
            required = allowed.get("mode") == "required"
            return _require(param, tools, chosen) if required else ToolChoice(setting=param, tools=chosen)
    raise RequestError(param, f"{row.get('type')!r} is not supported: use auto, none, required or a function")


def _require(param: str, tools: Sequence[ToolSpec], required: Sequence[ToolSpec]) -> ToolChoice:
    if not required:
        raise RequestError(param, "requires a call, but there is no tool to call")
    return ToolChoice(setting=param, tools=tuple(tools), required=tuple(required))


def _named(rows: Sequence[Any], param: str, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    known = {tool.name: tool for tool in tools}
    names = [read_text(read_object(row, param).get("name"), f"{param}.name") for row in rows]
    if missing := [name for name in names if name not in known]:
        raise RequestError(param, f"names {missing[0][:80]!r}, which is not one of the tools")
    return tuple(known[name] for name in dict.fromkeys(names))


def make_rule(schema: Mapping[str, Any] | None, param: str, choice: ToolChoice) -> ReplyRule | None:
    """Return the rule of a reply; None if the model may write anything. `param`: name of the schema's setting."""
    if choice.required:
        return ReplyRule(setting=choice.setting, schema=None, tools=choice.required)
    return None if schema is None else ReplyRule(setting=param, schema=schema, tools=choice.tools)
