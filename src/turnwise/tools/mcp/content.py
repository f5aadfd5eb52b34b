"""What an agent sees of a server's answer: its text; of what is no text, a short note."""

import json
from collections.abc import Callable

from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from turnwise.core.truncation import shortened
from turnwise.tools.tool import ToolResult

MOST_PARTS = 256
NAME_CHARS = 120
NOTHING = "(no output)"


def told(result: CallToolResult, limit: int, hidden: Callable[[str], str]) -> ToolResult:
    """`limit`: characters. `hidden` strikes out the server's keys, before anything is cut through."""
    text = shortened(hidden("\n".join(_parts(result))), limit)
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
