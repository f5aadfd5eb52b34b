"""What a recipe's `{ mcp = "..." }` becomes. The SDK is optional, and takes a second to import: only who asks pays."""

from collections.abc import Mapping
from typing import Any

from turnwise.config.keys import read_options
from turnwise.core.errors import UserError
from turnwise.tools.mcp.options import McpOptions
from turnwise.tools.tool import ToolSource


def make_mcp(options: Mapping[str, Any]) -> ToolSource:
    """`options`: those of `McpOptions`. A UserError says what is wrong with them, or what to install."""
    checked = read_options(McpOptions, options, "an MCP server")
    try:
        from turnwise.tools.mcp.source import McpSource
    except ImportError as error:
        raise UserError(
            f"MCP servers need the package mcp, 2.3 or newer ({error}): pip install 'turnwise[mcp]'"
        ) from error
    return McpSource(checked)
