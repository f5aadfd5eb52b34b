"""MCP server processes: none is left behind, whatever happens, and they see only their own secrets."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_tools_for_tests import GRACE_S, QUICK_GUARD, RAW, ToolCaller, alive, all_gone, open_server, read_pids
from processes_for_tests import forked_with_output
from turnwise.core.errors import InfrastructureFailure
from turnwise.tools.mcp import transports
from turnwise.tools.mcp.factory import make_mcp_source
from turnwise.tools.process_tree import MARKER, PROCESS_GUARD, kill_marked
from turnwise.tools.toolbox import ToolBox

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc"),
    pytest.mark.usefixtures("quick_guard"),
]


def wait_for_server(command: str, shared: bool) -> None:
    """Call a server that does not answer, after printing `ready`. In a process of its own."""
    transports.PROCESS_GUARD, transports.GRACE_S = QUICK_GUARD, GRACE_S

    async def run() -> None:
        async with open_server(command, shared=shared) as tools:
            sys.stdout.write("ready\n")
            await tools("do", how="silent")

    asyncio.run(run())


def test_process_tree_of_stubborn_server_is_killed(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_server(f"{RAW} {tmp_path / 'pids'}") as tools:
            await tools("do", how="well")
            pids = read_pids(tmp_path / "pids")
            assert len(pids) == 2 and all(map(alive, pids))
        assert all_gone(pids)

    asyncio.run(run())


def test_children_of_dead_server_are_killed(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_server(f"{RAW} {tmp_path / 'pids'}") as tools:
            with pytest.raises(InfrastructureFailure):
                await tools("do", how="die")
            assert all_gone(read_pids(tmp_path / "pids"))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("whom", "environment"),
    [("guard", "kept"), ("guard", "cleared"), ("reaper", "kept"), ("reaper", "cleared"), ("both", "kept")],
)
def test_daemon_of_server_that_kills_its_guard_is_killed(tmp_path: Path, whom: str, environment: str) -> None:
    async def run() -> None:
        async with open_server(RAW) as tools:
            with pytest.raises(InfrastructureFailure):
                await tools("do", how=f"kill {whom} {environment} {tmp_path / 'pids'}")
            pids = read_pids(tmp_path / "pids")
        assert all_gone(pids)

    asyncio.run(run())


GUARD = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"], env={})
def end(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(0.1)
    child.kill()
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print(child.pid, flush=True)
time.sleep(600)
"""
"""A process guard with an adopted process that has no marker, on a busy machine."""


def test_kill_marked_lets_a_guard_kill_what_it_adopted() -> None:
    command = [sys.executable, "-I", "-S", "-c", GUARD, "process_guard.py"]
    with subprocess.Popen(command, env={MARKER: "this one"}, stdout=subprocess.PIPE) as guard:
        assert guard.stdout is not None
        child = int(guard.stdout.readline())
        kill_marked("this one")
        assert guard.wait(60) == 0
        assert all_gone([child])


def test_daemon_of_server_that_stops_its_guard_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "KILL_S", 0.1)  # which the stopped guard uses up

    async def run() -> None:
        async with open_server(RAW, timeout_s=1.0) as tools:
            with pytest.raises(InfrastructureFailure):
                await tools("do", how=f"kill stop kept {tmp_path / 'pids'}")
            pids = read_pids(tmp_path / "pids")
        assert all_gone(pids)

    asyncio.run(run())


@pytest.mark.parametrize("shared", [False, True])
def test_servers_end_with_the_event_loop(tmp_path: Path, shared: bool) -> None:
    """Like after Ctrl-C, tasks are cancelled in any order."""

    async def run() -> None:
        async def episode() -> None:
            async with open_server(f"{RAW} {tmp_path / 'pids'}", shared=shared) as tools:
                await tools("do", how="silent")

        episodes = [asyncio.create_task(episode()) for _ in range(2)]
        await asyncio.to_thread(read_pids, tmp_path / "pids", lines=2)
        assert not any(task.done() for task in episodes)

    asyncio.run(run())
    assert all_gone(read_pids(tmp_path / "pids", lines=2))


@pytest.mark.parametrize(
    ("number", "shared"),
    [(signal.SIGKILL, False), pytest.param(signal.SIGINT, False, marks=pytest.mark.soak), (signal.SIGINT, True)],
)
def test_servers_end_when_host_is_killed(tmp_path: Path, number: int, shared: bool) -> None:
    with (tmp_path / "stderr").open("w") as stderr:
        arguments = f"{RAW} {tmp_path / 'pids'}", shared
        with forked_with_output(wait_for_server, *arguments, stderr=stderr.fileno()) as (host, output):
            assert output.readline() == "ready\n"
            pids = read_pids(tmp_path / "pids")
            assert all(map(alive, pids))
            os.kill(host.pid, number)
            host.wait(timeout=120)
            assert all_gone(pids)


def test_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "silent.py"
    script.write_text(f"open({str(tmp_path / 'pids')!r}, 'a').write(f'{{__import__(\"os\").getpid()}}\\n')\n"
                      "__import__('time').sleep(600)\n")  # fmt: skip
    silent = shlex.join([sys.executable, "-S", str(script)])

    async def run() -> None:
        with pytest.raises(InfrastructureFailure, match=r"not ready within 0\.5 s"):
            async with open_server(silent, start_timeout_s=0.5):
                pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                async with open_server(silent, start_timeout_s=600.0):
                    pass

    asyncio.run(run())
    assert all_gone(read_pids(tmp_path / "pids"))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("sh -c 'echo one >&2; echo port taken >&2; exit 4'", "it exited with status 4; stderr: port taken"),
        ("sh -c 'exit 0'", "it exited with status 0"),
    ],
)
def test_start_failure_is_one_line_with_reason(command: str, reason: str) -> None:
    async def run() -> None:
        async with open_server(command, start_timeout_s=60.0):
            pass

    with pytest.raises(InfrastructureFailure) as failure:
        asyncio.run(run())
    assert reason in str(failure.value) and "\n" not in str(failure.value) and command[:20] in str(failure.value)


def test_server_sees_only_its_key_and_output_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_API_KEY", "sk-canary-of-ours")
    monkeypatch.setenv("MY_KEY", "sk-canary-of-the-server")

    async def run() -> tuple[str, str, str]:
        box = ToolBox([], [source := make_mcp_source({"mcp": RAW, "env": {"KEY": "MY_KEY"}})])
        async with box.open(0) as episode_tools:
            tools = ToolCaller(episode_tools)
            seen = await tools("do", how="environment")
            with pytest.raises(InfrastructureFailure) as failure:
                await tools("do", how="die")
        return seen.text, str(failure.value), repr(vars(source))

    seen, failure, shown = asyncio.run(run())
    environment = json.loads(seen)
    assert environment["KEY"] == "***" and environment["PATH"] == os.environ["PATH"]
    allowed = {
        MARKER,
        "KEY",
        "PATH",
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LOGNAME",
        "SHELL",
        "TMPDIR",
        "TZ",
        "USER",
    }
    assert set(environment) <= allowed
    assert "out of memory ***" in failure and "canary" not in seen + failure + shown


def test_server_stderr_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with open_server(RAW) as tools:
            await tools("do", how="flood")
            with pytest.raises(InfrastructureFailure):
                await tools("do", how="die")

    asyncio.run(run())
    assert capfd.readouterr() == ("", "")


def test_server_may_exit_on_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing ends its input; it has a second to exit before it is killed."""
    monkeypatch.setattr(transports, "PROCESS_GUARD", PROCESS_GUARD)
    exited = tmp_path / "exited"
    setup = f"import atexit, pathlib, runpy, sys; atexit.register(pathlib.Path({str(exited)!r}).touch); "
    server = f"{setup}sys.argv = [{shlex.split(RAW)[-1]!r}]; runpy.run_path(sys.argv[0], run_name='__main__')"

    async def run() -> None:
        async with open_server(shlex.join([sys.executable, "-I", "-S", "-c", server])) as tools:
            await tools("do", how="well")

    asyncio.run(run())
    assert exited.exists()


def test_episode_opened_and_closed_by_different_tasks() -> None:
    async def run() -> None:
        box = ToolBox([], [make_mcp_source({"mcp": RAW})])
        context = box.open(0)
        await asyncio.create_task(context.__aenter__())
        await asyncio.create_task(context.__aexit__(None, None, None))

    asyncio.run(run())


def test_shared_source_works_in_consecutive_event_loops(tmp_path: Path) -> None:
    box = ToolBox([], [make_mcp_source({"mcp": f"{RAW} {tmp_path / 'pids'}", "shared": True})])

    async def run() -> str:
        async with box.open(0) as tools:
            return (await ToolCaller(tools)("do", how="count")).text

    assert [asyncio.run(run()) for _ in range(2)] == ["1", "1"]
    assert all_gone(read_pids(tmp_path / "pids", lines=2))
