"""Create the tool source of an MCP server from its options."""

from collections.abc import Mapping
from typing import Any

from turnwise.core.errors import UserError
from turnwise.pictures.image import import_pillow
from turnwise.settings.options import read_options
from turnwise.tools.mcp.options import McpOptions
from turnwise.tools.tool import ToolSource


def make_mcp_source(options: Mapping[str, Any]) -> ToolSource:
    """Create a source from `McpOptions`. Raises UserError if they are wrong, or the SDK is not installed."""
    checked = read_options(McpOptions, options, "an MCP server")
    if checked.images:
        import_pillow()
    try:
        from turnwise.tools.mcp.source import McpSource  # the SDK is optional, and takes a second to import
    except ImportError as error:
        raise UserError(
            f"MCP servers need the package mcp, version 2.3 or newer ({error}). Run `pip install 'turnwise[mcp]'`."
        ) from error
    return McpSource(checked)
