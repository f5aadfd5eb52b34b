"""Tools as a recipe names them: python, search, sql, servers, and functions of the user's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from turnwise.core.errors import UserError
from turnwise.core.names import nearest
from turnwise.envs.functions import load_function
from turnwise.tools.function import from_function
from turnwise.tools.mcp.factory import make_mcp
from turnwise.tools.search.make import make_search
from turnwise.tools.sql import make_sql
from turnwise.tools.tool import Tool, ToolSource

Given = str | Mapping[str, Any]


def make_python(options: Mapping[str, Any]) -> Tool:
    """Its options are the sandbox's limits, such as timeout_s and memory_mb."""
    from turnwise.tools.python import PythonTool, SandboxLimits

    for name in options:
        if name not in SandboxLimits.__dataclass_fields__:
            near = nearest(name, SandboxLimits.__dataclass_fields__)
            raise UserError(f"env.params.tools: python has no option {name}:{near}")
    try:
        limits = TypeAdapter(SandboxLimits).validate_python(dict(options))
    except ValidationError as error:
        wrong = error.errors()[0]
        raise UserError(f"env.params.tools: python's {wrong['loc'][0]}: {wrong['msg']}") from error
    return PythonTool(limits)


MAKERS: dict[str, Callable[[Mapping[str, Any]], Tool]] = {
    "python": make_python,
    "search": make_search,
    "sql": make_sql,
}


def tools_of(given: Sequence[Given]) -> list[Tool]:
    return [_tool(each) for each in given if not _is_server(each)]


def sources_of(given: Sequence[Given]) -> list[ToolSource]:
    return [make_mcp(each) for each in given if isinstance(each, Mapping) and _is_server(each)]


def _is_server(given: Given) -> bool:
    return isinstance(given, Mapping) and "mcp" in given


def _tool(given: Given) -> Tool:
    if isinstance(given, Mapping):
        use, options = given.get("use"), {name: value for name, value in given.items() if name != "use"}
        if use not in MAKERS:
            raise UserError(f"env.params.tools: a table needs use or mcp, and use = {use!r} is unknown:{_near(use)}")
        return MAKERS[use](options)
    if given in MAKERS:
        return MAKERS[given]({})
    return from_function(load_function(given, "env.params.tools", instead=MAKERS))


def _near(use: object) -> str:
    return nearest(str(use), MAKERS)
