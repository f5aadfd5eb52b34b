"""Make tools from the entries of a recipe: python, search, sql, MCP servers, and functions of the user."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.core.errors import UserError
from turnwise.envs.param_setting import param_setting
from turnwise.settings.options import read_options
from turnwise.text.suggestions import suggest
from turnwise.tools.function import from_function
from turnwise.tools.mcp.factory import make_mcp_source
from turnwise.tools.search.tool import make_search_tool
from turnwise.tools.sql.tool import make_sql_tool
from turnwise.tools.tool import Tool, ToolSource
from turnwise.user_code.references import load_function

ToolEntry = str | Mapping[str, Any]


def make_python_tool(options: Mapping[str, Any]) -> Tool:
    """Options: the limits of the sandbox, such as timeout_s and memory_mb."""
    from turnwise.tools.python import PythonTool, SandboxLimits

    return PythonTool(read_options(SandboxLimits, options, "the tool python"))


TOOL_FACTORIES: dict[str, Callable[[Mapping[str, Any]], Tool]] = {
    "python": make_python_tool,
    "search": make_search_tool,
    "sql": make_sql_tool,
}


def make_tools(entries: Sequence[ToolEntry]) -> list[Tool]:
    return [_make_tool(entry) for entry in entries if not _is_mcp_server(entry)]


def make_sources(entries: Sequence[ToolEntry]) -> list[ToolSource]:
    return [make_mcp_source(entry) for entry in entries if isinstance(entry, Mapping) and _is_mcp_server(entry)]


def _is_mcp_server(entry: ToolEntry) -> bool:
    return isinstance(entry, Mapping) and "mcp" in entry


def _make_tool(entry: ToolEntry) -> Tool:
    if isinstance(entry, Mapping):
        use, options = entry.get("use"), {name: value for name, value in entry.items() if name != "use"}
        if use not in TOOL_FACTORIES:
            near = suggest(str(use), TOOL_FACTORIES)
            raise UserError(f"{param_setting('tools')}: a table needs use or mcp, and use = {use!r} is unknown:{near}")
        return TOOL_FACTORIES[use](options)
    if entry in TOOL_FACTORIES:
        return TOOL_FACTORIES[entry]({})
    return from_function(load_function(entry, param_setting("tools"), alternatives=TOOL_FACTORIES))
