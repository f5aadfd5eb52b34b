"""Commands that start MCP servers for tests, and helpers to call them and watch their processes."""

import json
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from turnwise.core.messages import ToolCall
from turnwise.tools import process_guard
from turnwise.tools.mcp.factory import make_mcp_source
from turnwise.tools.tool import ToolResult
from turnwise.tools.toolbox import EpisodeTools, ToolBox
from work_for_tests import wait_until

HERE = Path(__file__).parent
SERVER = shlex.join([sys.executable, str(HERE / "mcp_server_for_tests.py")])
RAW = shlex.join([sys.executable, "-I", "-S", str(HERE / "mcp_raw_server_for_tests.py")])
GRACE_S = 0.1
QUICK_GUARD = (sys.executable, "-I", "-S", "-c", f"""
import sys
sys.path.insert(0, {str(Path(process_guard.__file__).parent)!r})
import process_guard
process_guard.GRACE_S = {GRACE_S}
sys.exit(process_guard.main(int(sys.argv[1]), sys.argv[2:]))
""")  # fmt: skip
"""Process guard that kills servers after a tenth of the usual time. The fixture `quick_guard` uses it."""


class ToolCaller:
    """Call tools as functions: `await tools("add", a=1, b=2)`."""

    def __init__(self, tools: EpisodeTools) -> None:
        self.tools = tools

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.tools.specs]

    async def __call__(self, tool: str, /, **arguments: Any) -> ToolResult:
        return await self.tools.call(ToolCall(name=tool, arguments=json.dumps(arguments)))


@asynccontextmanager
async def open_server(mcp: str, **options: Any) -> AsyncIterator[ToolCaller]:
    async with ToolBox([], [make_mcp_source({"mcp": mcp, **options})]).open(seed=0) as tools:
        yield ToolCaller(tools)


def alive(pid: int) -> bool:
    """Whether the process runs. Zombies do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_gone(pids: list[int]) -> bool:
    return wait_until(lambda: not any(map(alive, pids)))


def read_pids(file: Path, lines: int = 1) -> list[int]:
    """PIDs of servers and their children, once `lines` servers have written theirs."""
    written = wait_until(lambda: file.exists() and file.read_text().count("\n") >= lines)
    assert written, "no server has started"
    return [int(word) for word in file.read_text().split()]
