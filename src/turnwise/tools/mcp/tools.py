"""Tools of an MCP server as turnwise tools: checked names and schemas, validated arguments, answers as text."""

import base64
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
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
from turnwise.pictures.image import Image
from turnwise.text.suggestions import suggest
from turnwise.text.truncation import truncate_middle
from turnwise.tools.mcp.options import McpOptions
from turnwise.tools.tool import ToolError, ToolResult, ToolRules

NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
MAX_DESCRIPTION_CHARS = 2000
MAX_SCHEMA_CHARS = 50_000
MAX_ERROR_CHARS = 200
MAX_PARTS, MAX_IMAGES = 256, 8
MAX_NAME_CHARS = 120
NO_OUTPUT = "(no output)"
FIX = 'exclude it by listing the others in tools = ["...", ...]'

CallServer = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]


class McpTool:
    """A server's tool and its session in one: the state is the server's."""

    def __init__(self, spec: ToolSpec, rules: ToolRules, *, name: str, validator: Any, call_server: CallServer) -> None:
        """`name`: the server's name of the tool, without prefix."""
        self.spec, self.rules = spec, rules
        self._name, self._validator, self._call_server = name, validator, call_server

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            error = best_match(self._validator.iter_errors(dict(arguments)))
        except Unresolvable:
            return dict(arguments)  # the schema refers to one that is not available: leave it to the server
        except RecursionError:
            raise ToolError("the arguments are nested too deeply") from None
        if error is not None:
            raise ToolError(_describe(error))
        return dict(arguments)

    @asynccontextmanager
    async def open(self, seed: int, state: Any) -> AsyncIterator["McpTool"]:
        yield self

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._call_server(self._name, arguments)


def build_tools(
    listed: Sequence[types.Tool], options: McpOptions, rules: ToolRules, call_server: CallServer, *, label: str
) -> dict[str, McpTool]:
    """Build the selected tools, by the names that the agent uses. Raises UserError for an unusable one."""
    tools: dict[str, McpTool] = {}
    for tool in listed:
        if options.tools is None or tool.name in options.tools:
            name = f"{options.prefix}{tool.name}"
            if name in tools:
                raise UserError(f"mcp {label}: it has two tools called {name[:60]}: {FIX}")
            tools[name] = _build_tool(tool, name, rules, call_server, label)
    return tools


def check_tool_names(listed: Sequence[types.Tool], options: McpOptions, label: str) -> None:
    """Raise UserError if the options select a tool that the server does not have."""
    known = [tool.name for tool in listed]
    for name in options.tools or ():
        if name not in known:
            raise UserError(f"mcp {label}: it has no tool {name}:{suggest(name, known)}")


def _build_tool(tool: types.Tool, name: str, rules: ToolRules, call_server: CallServer, label: str) -> McpTool:
    if not NAME.fullmatch(name):
        raise UserError(f"mcp {label}: an agent cannot call a tool with the name {name[:40]!r}: {FIX}")
    schema = _check_schema(tool, label)
    spec = ToolSpec(
        name=name,
        description=truncate_middle((tool.description or "").strip(), MAX_DESCRIPTION_CHARS),
        parameters={key: value for key, value in schema.items() if key not in ("$schema", "title")},
    )
    validator = validator_for(schema, default=Draft202012Validator)
    # the empty registry prevents fetching schemas by URL
    return McpTool(
        spec, rules, name=tool.name, validator=validator(schema, registry=Registry()), call_server=call_server
    )


def _check_schema(tool: types.Tool, label: str) -> dict[str, Any]:
    """Return the schema as an object whose properties are objects, which readers of schemas rely on."""
    schema: dict[str, Any] = {"type": "object", **tool.input_schema}
    properties = schema.get("properties", {})
    if schema["type"] != "object" or not isinstance(properties, dict):
        raise UserError(f"mcp {label}: the arguments of {tool.name[:60]} are not an object: {FIX}")
    schema["properties"] = {name: {} if value is True else value for name, value in properties.items()}
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        raise UserError(f"mcp {label}: the schema of {tool.name[:60]} is too long for a prompt: {FIX}")
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except (SchemaError, RecursionError) as error:
        raise UserError(f"mcp {label}: the schema of {tool.name[:60]} is not a valid JSON schema: {FIX}") from error
    if not all(isinstance(value, dict) for value in schema["properties"].values()):
        raise UserError(f"mcp {label}: the schema of {tool.name[:60]} forbids its own arguments: {FIX}")
    return schema


def _describe(error: ValidationError) -> str:
    """A validation error in a few words for the agent, since every token costs."""
    path = ".".join(map(str, error.absolute_path))
    if error.validator == "required" and not path:
        missing = next((name for name in error.validator_value if name not in error.instance), "")
        return f"the argument {missing} is missing"
    if error.validator == "additionalProperties" and not path:
        known = error.schema.get("properties", {})
        extra = next((name for name in error.instance if name not in known), "")
        return truncate_middle(f"no argument {extra}: there are {', '.join(known) or 'none'}", MAX_ERROR_CHARS)
    return truncate_middle(f"{path}: {error.message}" if path else error.message, MAX_ERROR_CHARS)


def to_tool_result(
    result: CallToolResult, limit: int, redact: Callable[[str], str], *, with_images: bool = False
) -> ToolResult:
    """Convert a server's answer: its text and images, with notes for files and for images that are not shown.

    `limit`: characters. `redact` removes the server's keys, and runs before truncation could split one.
    """
    images = _read_images(result) if with_images else {}
    text = truncate_middle(redact("\n".join(_content_parts(result, images))), limit)
    return ToolResult(text=text or ("" if images else NO_OUTPUT), images=tuple(images.values()), failed=result.is_error)


def _read_images(result: CallToolResult) -> dict[int, Image]:
    """Return the images of an answer by index. Broken and very large ones, and those after MAX_IMAGES, become notes."""
    images: dict[int, Image] = {}
    for index, content in enumerate(result.content[:MAX_PARTS]):
        if isinstance(content, ImageContent) and len(images) < MAX_IMAGES:
            with suppress(UserError, ValueError):
                images[index] = Image(base64.b64decode(content.data, validate=True))
    return images


def _content_parts(result: CallToolResult, images: Mapping[int, Image]) -> list[str]:
    shown = [content for index, content in enumerate(result.content[:MAX_PARTS]) if index not in images]
    parts = [text for content in shown if (text := _content_text(content))]
    if len(result.content) > MAX_PARTS:
        parts.append(f"[{len(result.content) - MAX_PARTS} more parts]")
    if not parts and not images and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return parts


def _content_text(content: TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource) -> str:
    if isinstance(content, TextContent):
        return content.text
    if isinstance(content, ImageContent | AudioContent):
        subtype = content.mime_type.rpartition("/")[2]
        return f"[{content.type} {subtype[:MAX_NAME_CHARS]}, {_format_size(len(content.data) * 3 // 4)}]"
    if isinstance(content, ResourceLink):
        return f"[resource {content.uri[:MAX_NAME_CHARS]}]"
    resource = content.resource
    if isinstance(resource, TextResourceContents):
        return f"[resource {resource.uri[:MAX_NAME_CHARS]}]\n{resource.text}"
    return f"[resource {resource.uri[:MAX_NAME_CHARS]}, {_format_size(len(resource.blob) * 3 // 4)}]"


def _format_size(count: int) -> str:
    return f"{count} bytes" if count < 1000 else f"{round(count / 1000)} kB"
