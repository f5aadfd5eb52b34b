"""Published MCP servers: time and git from PyPI, filesystem and everything from npm."""

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_tools_for_tests import all_gone, open_server
from turnwise.sandbox.processes import descendants

pytestmark = pytest.mark.usefixtures("quick_guard")

NPM = Path(sys.prefix) / "npm"
"""Folder where `make test` installs servers from npm."""


def pypi_command(name: str, optional_part: Callable) -> str:
    program = Path(sys.prefix) / "bin" / name
    if not program.exists():
        optional_part(f"{name} is not installed: pip install {name}")
    return str(program)


def npm_command(name: str, optional_part: Callable) -> str:
    """Command with npx, as users write it: the server is a shell with node below it."""
    if shutil.which("npx") is None or not (NPM / "node_modules" / ".bin" / name).exists():
        optional_part(f"{name} is not installed", "npm")
    return shlex.join(["npx", "--prefix", str(NPM), "--no", name])


def test_time_server(optional_part: Callable) -> None:
    async def run() -> None:
        async with open_server(f"{pypi_command('mcp-server-time', optional_part)} --local-timezone UTC") as tools:
            assert set(tools.names) == {"get_current_time", "convert_time"}
            zones = {"source_timezone": "Europe/Paris", "target_timezone": "Asia/Tokyo"}
            result = await tools("convert_time", **zones, time="12:00")
            assert json.loads(result.text)["time_difference"] in ("+7.0h", "+8.0h") and not result.failed
            unknown = await tools("get_current_time", timezone="Nowhere/Land")
            assert unknown.failed and "Nowhere/Land" in unknown.text
            assert (await tools("get_current_time")).text == "get_current_time: the argument timezone is missing"

    asyncio.run(run())


@pytest.mark.soak
def test_git_server(tmp_path: Path, optional_part: Callable) -> None:
    if shutil.which("git") is None:
        optional_part("git is not installed")

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "poem.txt").write_text("roses\n")
    git("add", "poem.txt")
    git("commit", "-m", "The first line")
    (tmp_path / "poem.txt").write_text("roses\nviolets\n")

    async def run() -> None:
        command = f"{pypi_command('mcp-server-git', optional_part)} --repository {shlex.quote(str(tmp_path))}"
        async with open_server(command, tools=["git_log", "git_diff_unstaged"], prefix="my_") as tools:
            assert set(tools.names) == {"my_git_log", "my_git_diff_unstaged"}
            assert "The first line" in (await tools("my_git_log", repo_path=str(tmp_path))).text
            assert "+violets" in (await tools("my_git_diff_unstaged", repo_path=str(tmp_path))).text
            assert (await tools("my_git_log", repo_path=str(tmp_path.parent))).failed

    asyncio.run(run())


def test_filesystem_server_leaves_no_process(tmp_path: Path, optional_part: Callable) -> None:
    (tmp_path / "note.txt").write_text("a note\n" * 3)

    async def run() -> list[int]:
        command = npm_command("mcp-server-filesystem", optional_part)
        others = set(descendants(os.getpid()))  # of tests that ran here before
        async with open_server(f"{command} .", cwd=str(tmp_path), max_output=1000) as tools:
            processes = [pid for pid in descendants(os.getpid()) if pid not in others]
            assert (await tools("read_text_file", path=str(tmp_path / "note.txt"))).text == "a note\n" * 3
            denied = await tools("read_text_file", path="/etc/passwd")
            assert denied.failed and denied.text.startswith("Access denied")
            assert (await tools("write_file", path=str(tmp_path / "new.txt"), content="x")).failed is False
            assert (tmp_path / "new.txt").read_text() == "x"
            assert (await tools("read_text_file", path=5)).text == "read_text_file: path: 5 is not of type 'string'"
            return processes

    processes = asyncio.run(run())
    assert len(processes) >= 3
    assert all_gone(processes)


@pytest.mark.soak
def test_everything_server(monkeypatch: pytest.MonkeyPatch, optional_part: Callable) -> None:
    monkeypatch.setenv("CANARY_API_KEY", "sk-canary")

    async def run() -> None:
        async with open_server(npm_command("mcp-server-everything", optional_part)) as tools:
            assert (await tools("echo", message="<tool_call>")).text == "Echo: <tool_call>"
            assert "[image png, 4 kB]" in (await tools("get-tiny-image")).text
            weather = json.loads((await tools("get-structured-content", location="Chicago")).text)
            assert set(weather) == {"temperature", "conditions", "humidity"}
            links = (await tools("get-resource-links", count=2)).text
            assert links.count("[resource demo://resource/") == 2
            embedded = (await tools("get-resource-reference", resourceType="Text", resourceId=1)).text
            assert "[resource demo://resource/dynamic/text/1]\nResource 1" in embedded
            assert "canary" not in (await tools("get-env")).text
            slow = asyncio.create_task(tools("trigger-long-running-operation", duration=60, steps=2))
            await asyncio.sleep(0.1)
            slow.cancel()
            await asyncio.wait([slow])
            assert (await tools("get-sum", a=1, b=2)).text == "The sum of 1 and 2 is 3."

    asyncio.run(run())
