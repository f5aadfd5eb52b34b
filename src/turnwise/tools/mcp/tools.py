"""The tools that a server offers, as turnwise's: names and schemas are checked, since a server may say anything."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from jsonschema import SchemaError, ValidationError  # type: ignore[import-untyped]
from jsonschema.exceptions import best_match  # type: ignore[import-untyped]
from jsonschema.validators import Draft202012Validator, validator_for  # type: ignore[import-untyped]
from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from referencing import Registry
from referencing.exceptions import Unresolvable

from turnwise.core.errors import UserError
from turnwise.core.messages import ToolSpec
from turnwise.core.suggestions import nearest
from turnwise.core.truncation import truncate_middle
from turnwise.tools.mcp.options import McpOptions
from turnwise.tools.tool import ToolError, ToolResult, ToolRules

NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
DESCRIPTION_CHARS = 2000
SCHEMA_CHARS = 50_000
COMPLAINT_CHARS = 200
MEND = 'leave it out by tools = ["...", ...]'

CallServer = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]


class McpTool:
    """One tool of a server, and an episode's hold on it: `ask` knows whose server it is."""

    def __init__(self, spec: ToolSpec, rules: ToolRules, *, name: str, validator: Any, ask: CallServer) -> None:
        self.spec, self.rules = spec, rules
        self._name, self._validator, self._ask = name, validator, ask

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            error = best_match(self._validator.iter_errors(dict(arguments)))
        except Unresolvable:
            return dict(arguments)  # the schema leans on another one that is not here: the server may judge
        except RecursionError:
            raise ToolError("the arguments are nested too deeply") from None
        if error is not None:
            raise ToolError(_complaint(error))
        return dict(arguments)

    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator["McpTool"]:
        """Its state is the server's."""
        yield self

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._ask(self._name, arguments)


def build_tools(
    listed: Sequence[types.Tool], options: McpOptions, rules: ToolRules, ask: CallServer, *, label: str
) -> dict[str, McpTool]:
    """Those that the options ask for, by the name that the agent calls them by."""
    made: dict[str, McpTool] = {}
    for tool in listed:
        if options.tools is None or tool.name in options.tools:
            name = f"{options.prefix}{tool.name}"
            if name in made:
                raise UserError(f"mcp {label}: it has two tools {name[:60]}: {MEND}")
            made[name] = _tool(tool, name, rules, ask, label)
    return made


def check_tool_names(listed: Sequence[types.Tool], options: McpOptions, label: str) -> None:
    """A mistyped name would be a tool that is silently not there."""
    known = [tool.name for tool in listed]
    for name in options.tools or ():
        if name not in known:
            raise UserError(f"mcp {label}: it has no tool {name}:{nearest(name, known)}")


def _tool(tool: types.Tool, name: str, rules: ToolRules, ask: CallServer, label: str) -> McpTool:
    if not NAME.fullmatch(name):
        raise UserError(f"mcp {label}: the name {name[:40]!r} is none that an agent could call: {MEND}")
    schema = _schema(tool, label)
    spec = ToolSpec(
        name=name,
        description=truncate_middle((tool.description or "").strip(), DESCRIPTION_CHARS),
        parameters={key: value for key, value in schema.items() if key not in ("$schema", "title")},
    )
    kind = validator_for(schema, default=Draft202012Validator)
    # the registry is empty: a schema that names another one by a URL is not fetched
    return McpTool(spec, rules, name=tool.name, validator=kind(schema, registry=Registry()), ask=ask)


def _schema(tool: types.Tool, label: str) -> dict[str, Any]:
    """An object whose properties are objects, as those who read schemas take for granted."""
    schema: dict[str, Any] = {"type": "object", **tool.input_schema}
    properties = schema.get("properties", {})
    if schema["type"] != "object" or not isinstance(properties, dict):
        raise UserError(f"mcp {label}: the arguments of {tool.name[:60]} are no object: {MEND}")
    schema["properties"] = {name: {} if value is True else value for name, value in properties.items()}
    if len(json.dumps(schema)) > SCHEMA_CHARS:
        raise UserError(f"mcp {label}: the schema of {tool.name[:60]} is too long for a prompt: {MEND}")
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except (SchemaError, RecursionError) as error:
        raise UserError(f"mcp {label}: the schema of {tool.name[:60]} is no JSON schema: {MEND}") from error
    if not all(isinstance(value, dict) for value in schema["properties"].values()):
        raise UserError(f"mcp {label}: the schema of {tool.name[:60]} forbids its own arguments: {MEND}")
    return schema


def _complaint(error: ValidationError) -> str:
    """A few words, since every one is paid for."""
    where = ".".join(map(str, error.absolute_path))
    if error.validator == "required" and not where:
        missing = next((name for name in error.validator_value if name not in error.instance), "")
        return f"the argument {missing} is missing"
    if error.validator == "additionalProperties" and not where:
        known = error.schema.get("properties", {})
        extra = next((name for name in error.instance if name not in known), "")
        return truncate_middle(f"no argument {extra}: there are {', '.join(known) or 'none'}", COMPLAINT_CHARS)
    return truncate_middle(f"{where}: {error.message}" if where else error.message, COMPLAINT_CHARS)


MOST_PARTS = 256
NAME_CHARS = 120
NOTHING = "(no output)"


def to_tool_result(result: CallToolResult, limit: int, hidden: Callable[[str], str]) -> ToolResult:
    """`limit`: characters. `hidden` strikes out the server's keys, before anything is cut through."""
    text = truncate_middle(hidden("\n".join(_parts(result))), limit)
    return ToolResult(text=text or NOTHING, failed=result.is_error)


def _parts(result: CallToolResult) -> list[str]:
    parts = [text for content in result.content[:MOST_PARTS] if (text := _text(content))]
    if len(result.content) > MOST_PARTS:
        parts.append(f"[{len(result.content) - MOST_PARTS} more parts]")
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return parts


def _text(content: TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource) -> str:
    if isinstance(content, TextContent):
        return content.text
    if isinstance(content, ImageContent | AudioContent):
        kind = content.mime_type.rpartition("/")[2]
        return f"[{content.type} {kind[:NAME_CHARS]}, {_size(len(content.data) * 3 // 4)}]"
    if isinstance(content, ResourceLink):
        return f"[resource {content.uri[:NAME_CHARS]}]"
    resource = content.resource
    if isinstance(resource, TextResourceContents):
        return f"[resource {resource.uri[:NAME_CHARS]}]\n{resource.text}"
    return f"[resource {resource.uri[:NAME_CHARS]}, {_size(len(resource.blob) * 3 // 4)}]"


def _size(count: int) -> str:
    return f"{count} bytes" if count < 1000 else f"{round(count / 1000)} kB"
