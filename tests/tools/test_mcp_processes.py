"""Nothing of a server stays behind, whatever becomes of it and of us; and it sees nothing that is not its own."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_ground_for_tests import HERE, RAW, SERVER, Hands, alive, all_gone, opened, pids_in
from turnwise.core.errors import InfrastructureFailure
from turnwise.core.messages import ToolCall
from turnwise.tools.mcp.options import make_mcp_source
from turnwise.tools.mcp.transports import MARKER
from turnwise.tools.toolbox import ToolBox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")

HOST = f"""
import asyncio, sys
sys.path.insert(0, {str(HERE)!r})
from mcp_ground_for_tests import RAW, opened
async def run():
    async with opened(sys.argv[1], shared=sys.argv[2] == "shared") as hands:
        print("ready", flush=True)
        await hands("do", how="silent")
asyncio.run(run())
"""


def test_a_server_that_will_not_go_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(f"{RAW} {tmp_path / 'pids'}") as tools:
            await tools("do", how="well")
            pids = pids_in(tmp_path / "pids")
            assert len(pids) == 2 and all(map(alive, pids))
        assert all_gone(pids)

    asyncio.run(run())


def test_what_a_dead_server_left_behind_is_killed(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(f"{RAW} {tmp_path / 'pids'}") as tools:
            with pytest.raises(InfrastructureFailure):
                await tools("do", how="die")
            assert all_gone(pids_in(tmp_path / "pids"))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("whom", "environment"),
    [("guard", "kept"), ("guard", "cleared"), ("reaper", "kept"), ("reaper", "cleared"), ("both", "kept")],
)
def test_server_that_kills_its_guard_leaves_no_daemon(tmp_path: Path, whom: str, environment: str) -> None:
    async def run() -> None:
        async with opened(RAW) as tools:
            with pytest.raises(InfrastructureFailure):
                await tools("do", how=f"kill {whom} {environment} {tmp_path / 'pids'}")
            pids = pids_in(tmp_path / "pids")
        assert all_gone(pids)

    asyncio.run(run())


def test_server_that_stops_its_guard_leaves_no_daemon(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(RAW, timeout_s=1.0) as tools:
            with pytest.raises(InfrastructureFailure):
                await tools("do", how=f"kill stop kept {tmp_path / 'pids'}")
            pids = pids_in(tmp_path / "pids")
        assert all_gone(pids)

    asyncio.run(run())


@pytest.mark.parametrize("shared", [False, True])
def test_an_event_loop_that_ends_takes_its_servers_along(tmp_path: Path, shared: bool) -> None:
    """As Ctrl-C ends it: tasks are cancelled, in whatever order."""

    async def run() -> None:
        async def episode() -> None:
            async with opened(f"{RAW} {tmp_path / 'pids'}", shared=shared) as tools:
                await tools("do", how="silent")

        episodes = [asyncio.create_task(episode()) for _ in range(2)]
        await asyncio.to_thread(pids_in, tmp_path / "pids", lines=2)
        assert not any(task.done() for task in episodes)

    asyncio.run(run())
    assert all_gone(pids_in(tmp_path / "pids", lines=2))


@pytest.mark.parametrize(
    ("how", "shared"), [(signal.SIGKILL, "own"), (signal.SIGINT, "own"), (signal.SIGINT, "shared")]
)
def test_a_host_that_is_killed_or_interrupted_leaves_nothing(tmp_path: Path, how: int, shared: str) -> None:
    command = [sys.executable, "-c", HOST, f"{RAW} {tmp_path / 'pids'}", shared]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as host:
        assert host.stdout is not None and host.stdout.readline() == b"ready\n"
        pids = pids_in(tmp_path / "pids")
        assert all(map(alive, pids))
        host.send_signal(how)
        host.wait(timeout=120)
        assert all_gone(pids)


def test_a_start_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "mute.py"
    script.write_text(f"open({str(tmp_path / 'pids')!r}, 'a').write(f'{{__import__(\"os\").getpid()}}\\n')\n"
                      "__import__('time').sleep(600)\n")  # fmt: skip
    mute = shlex.join([sys.executable, "-S", str(script)])

    async def run() -> None:
        with pytest.raises(InfrastructureFailure, match=r"not ready within 1 s"):
            async with opened(mute, start_timeout_s=1.0):
                pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.7):
                async with opened(mute, start_timeout_s=600.0):
                    pass

    asyncio.run(run())
    assert all_gone(pids_in(tmp_path / "pids"))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("sh -c 'echo one >&2; echo port taken >&2; exit 4'", "it ended with status 4; it said: port taken"),
        ("sh -c 'exit 0'", "it ended with status 0"),
    ],
)
def test_a_start_that_fails_says_why_in_one_line(command: str, why: str) -> None:
    async def run() -> None:
        async with opened(command, start_timeout_s=60.0):
            pass

    with pytest.raises(InfrastructureFailure) as failure:
        asyncio.run(run())
    assert why in str(failure.value) and "\n" not in str(failure.value) and command[:20] in str(failure.value)


def test_a_server_sees_no_key_but_its_own_and_says_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_API_KEY", "sk-canary-of-ours")
    monkeypatch.setenv("MY_KEY", "sk-canary-of-the-server")

    async def run() -> tuple[str, str, str]:
        box = ToolBox([], [source := make_mcp_source({"mcp": SERVER, "env": {"KEY": "MY_KEY"}})])
        async with opened(RAW, env={"KEY": "MY_KEY"}) as raw:
            with pytest.raises(InfrastructureFailure) as failure:
                await raw("do", how="die")
        async with box.open(0) as tools:
            seen = await tools.call(ToolCall(name="environment", arguments="{}"))
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
    assert "out of luck ***" in failure and "canary" not in seen + failure + shown


def test_a_servers_errors_stay_away_from_our_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with opened(RAW) as tools:
            await tools("do", how="flood")
            with pytest.raises(InfrastructureFailure):
                await tools("do", how="die")

    asyncio.run(run())
    assert capfd.readouterr() == ("", "")


def test_a_server_that_goes_by_itself_is_not_killed(tmp_path: Path) -> None:
    """Closing ends its input, and it has a second to go: that it went is known at once."""
    left = tmp_path / "left"
    serves = f"import atexit, pathlib, runpy, sys; atexit.register(pathlib.Path({str(left)!r}).touch); "
    server = f"{serves}sys.argv = [{shlex.split(RAW)[-1]!r}]; runpy.run_path(sys.argv[0], run_name='__main__')"

    async def run() -> None:
        async with opened(shlex.join([sys.executable, "-I", "-S", "-c", server])) as tools:
            await tools("do", how="well")

    asyncio.run(run())
    assert left.exists()


def test_an_episode_may_be_opened_by_one_task_and_closed_by_another() -> None:
    async def run() -> None:
        box = ToolBox([], [make_mcp_source({"mcp": RAW})])
        hold = box.open(0)
        await asyncio.create_task(hold.__aenter__())
        await asyncio.create_task(hold.__aexit__(None, None, None))

    asyncio.run(run())


def test_a_shared_source_serves_one_event_loop_after_the_other(tmp_path: Path) -> None:
    box = ToolBox([], [make_mcp_source({"mcp": f"{RAW} {tmp_path / 'pids'}", "shared": True})])

    async def run() -> str:
        async with box.open(0) as tools:
            return (await Hands(tools)("do", how="count")).text

    assert [asyncio.run(run()) for _ in range(2)] == ["1", "1"]
    assert all_gone(pids_in(tmp_path / "pids", lines=2))
