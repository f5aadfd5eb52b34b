"""Tools as a recipe names them: python, search, sql, servers, and functions of the user's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.config.keys import read_options
from turnwise.core.errors import UserError
from turnwise.core.suggestions import suggest
from turnwise.envs.registry import load_function
from turnwise.tools.function import from_function
from turnwise.tools.mcp.options import make_mcp_source
from turnwise.tools.search.tool import make_search_tool
from turnwise.tools.sql.tool import make_sql_tool
from turnwise.tools.tool import Tool, ToolSource

ToolEntry = str | Mapping[str, Any]


def make_python(options: Mapping[str, Any]) -> Tool:
    """Its options are the sandbox's limits, such as timeout_s and memory_mb."""
    from turnwise.tools.python import PythonTool, SandboxLimits

    return PythonTool(read_options(SandboxLimits, options, "the tool python"))


TOOL_FACTORIES: dict[str, Callable[[Mapping[str, Any]], Tool]] = {
    "python": make_python,
    "search": make_search_tool,
    "sql": make_sql_tool,
}


def make_tools(given: Sequence[ToolEntry]) -> list[Tool]:
    return [_tool(each) for each in given if not _is_server(each)]


def make_sources(given: Sequence[ToolEntry]) -> list[ToolSource]:
    return [make_mcp_source(each) for each in given if isinstance(each, Mapping) and _is_server(each)]


def _is_server(given: ToolEntry) -> bool:
    return isinstance(given, Mapping) and "mcp" in given


def _tool(given: ToolEntry) -> Tool:
    if isinstance(given, Mapping):
        use, options = given.get("use"), {name: value for name, value in given.items() if name != "use"}
        if use not in TOOL_FACTORIES:
            raise UserError(f"env.params.tools: a table needs use or mcp, and use = {use!r} is unknown:{_near(use)}")
        return TOOL_FACTORIES[use](options)
    if given in TOOL_FACTORIES:
        return TOOL_FACTORIES[given]({})
    return from_function(load_function(given, "env.params.tools", instead=TOOL_FACTORIES))


def _near(use: object) -> str:
    return suggest(str(use), TOOL_FACTORIES)
