"""The contract of `Tool` over the tools of turnwise, and over tools that break it."""

import asyncio
import itertools
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from search_for_tests import make_index

from mcp_tools_for_tests import SERVER
from turnwise.sandbox.types import SandboxLimits
from turnwise.testing import check_open_tool, check_tool
from turnwise.tools.function import from_function, tool
from turnwise.tools.mcp.factory import make_mcp_source
from turnwise.tools.python import PythonTool
from turnwise.tools.search.index import open_index
from turnwise.tools.search.tool import SearchTool
from turnwise.tools.sql.tool import make_sql_tool
from turnwise.tools.tool import ToolResult

COUNTER = itertools.count()


def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


@tool(pure=True)
def draw() -> str:
    """Draw a number: not pure, whatever it claims."""
    return str(next(COUNTER))


def succeed() -> ToolResult:
    """Claim success without an end."""
    return ToolResult(text="done", success=True)


def test_function_tool_keeps_the_contract() -> None:
    check_tool(from_function(add), {"first": 1, "second": 2}, refused=[{}, {"first": "x", "second": 2}, {"third": 3}])


def test_search_tool_keeps_the_contract(tmp_path: Path) -> None:
    check_tool(SearchTool(open_index(make_index(tmp_path))), {"query": "river"}, refused=[{}, {"query": 3}])


def test_python_tool_keeps_the_contract() -> None:
    check_tool(PythonTool(SandboxLimits()), {"code": "print(1)"}, refused=[{}, {"code": 3}])


def test_sql_tool_keeps_the_contract(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "animals.db")) as database:
        database.execute("create table animals (name text)")
        database.commit()
    sql = make_sql_tool({"database": str(tmp_path / "animals.db")})
    check_tool(sql, {"query": "select count(*) from animals"}, refused=[{}])


def test_mcp_tool_keeps_the_contract(quick_guard: None) -> None:
    async def check() -> None:
        source = make_mcp_source({"mcp": SERVER})
        async with source.open_tools(0, None) as opened:
            tool, _ = opened.tools["add"]
            await check_open_tool(tool, {"a": 1, "b": 2}, refused=[{}, {"a": "x", "b": 2}])

    asyncio.run(check())


def test_check_tool_names_the_broken_rule() -> None:
    with pytest.raises(AssertionError, match="a pure tool returns equal results"):
        check_tool(from_function(draw), {})
    with pytest.raises(AssertionError, match="ends the episode is a success"):
        check_tool(from_function(succeed), {})
    with pytest.raises(AssertionError, match="check raises ToolError"):
        check_tool(from_function(add), {"first": 1, "second": 2}, refused=[{"first": 1, "second": 2}])
