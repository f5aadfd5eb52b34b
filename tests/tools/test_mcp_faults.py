"""MCP servers that die, hang, flood and break the protocol: what the agent sees and what is retried."""

import asyncio
import shlex
import sys
from pathlib import Path

import pytest

from mcp_server_for_tests import HOSTILE, MEGABYTE
from mcp_tools_for_tests import RAW, SERVER, ToolCaller, open_server
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.tools.mcp import connection, source, transports
from turnwise.tools.mcp.factory import make_mcp_source
from turnwise.tools.toolbox import ToolBox

pytestmark = pytest.mark.usefixtures("quick_guard")


def test_sdk_server_over_stdio() -> None:
    """Uses the newest protocol. One server for all checks, since starting it takes a second."""

    async def run() -> None:
        async with open_server(SERVER, max_output=1000) as tools:
            assert ((await tools("add", a=2, b=3)).text, (await tools("add", a=2, b=3)).failed) == ("5", False)
            refused = await tools("refuse", why="too late")
            assert refused.failed and "too late" in refused.text
            assert (await tools("add", a="two", b=3)).text == "add: a: 'two' is not of type 'integer'"
            assert (await tools("say")).text == HOSTILE
            surrogate = await tools("refuse", why="\ud800 x")
            assert surrogate.text.startswith("refuse: the arguments contain ")
            await check_long_answer_is_cut(tools)
            await check_cancelled_call_is_cancelled_at_server(tools)
            await check_changed_tools(tools)
            with pytest.raises(InfrastructureFailure, match="it exited with status 3; stderr: out of memory"):
                await tools("crash")

    asyncio.run(run())


async def check_long_answer_is_cut(tools: ToolCaller) -> None:
    long = (await tools("megabyte")).text
    assert long.startswith("firstxxx") and long.endswith("xxxlast") and len(long) < 1100
    assert f"[{MEGABYTE + 9 - 1000} characters cut]" in long


async def check_cancelled_call_is_cancelled_at_server(tools: ToolCaller) -> None:
    cancelled = asyncio.create_task(tools("hang"))
    while (await tools("hung")).text != "1 0":
        await asyncio.sleep(0.01)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    assert (await tools("hung")).text == "1 1"


async def check_changed_tools(tools: ToolCaller) -> None:
    """The newer protocol notifies subscribers."""
    before = set(tools.names)
    await tools("learn")
    assert set(tools.names) == before - {"learn"} | {"plus"}
    assert (await tools("plus", a=1, b=2)).text == "3"
    assert "no tool 'learn'" in (await tools("learn")).text


def test_tool_list_change_in_older_protocol() -> None:
    async def run() -> None:
        async with open_server(RAW, prefix="raw_") as tools:
            assert tools.names == ["raw_do"]
            await tools("raw_do", how="more tools")
            assert tools.names == ["raw_do", "raw_late"]
            assert not (await tools("raw_late")).failed

    asyncio.run(run())


def test_unknown_tool_in_options_is_a_user_error() -> None:
    async def run() -> None:
        async with open_server(RAW, tools=["d0"]):
            pass

    with pytest.raises(UserError, match=r"it has no tool d0: there are do"):
        asyncio.run(run())


def test_server_per_episode_keeps_state_apart() -> None:
    async def run() -> None:
        box = ToolBox([], [make_mcp_source({"mcp": RAW})])
        async with box.open(0) as one, box.open(1) as other:
            assert [(await ToolCaller(one)("do", how="count")).text for _ in range(2)] == ["1", "2"]
            assert (await ToolCaller(other)("do", how="count")).text == "1"

    asyncio.run(run())


def test_server_death_during_call_reports_signal_and_stderr() -> None:
    async def run() -> None:
        async with open_server(RAW, retries=5) as tools:
            with pytest.raises(InfrastructureFailure) as failure:
                await tools("do", how="die")
            with pytest.raises(InfrastructureFailure, match="SIGKILL"):
                await tools("do", how="well")
        message = str(failure.value)
        assert message.endswith("Connection closed; it was killed by SIGKILL; stderr: out of memory")
        assert "\n" not in message

    asyncio.run(run())


def test_shared_server_keeps_state_and_restarts_after_death() -> None:
    async def run() -> None:
        box = ToolBox([], [make_mcp_source({"mcp": RAW, "shared": True})])
        async with box.open(0) as tools:
            assert (await ToolCaller(tools)("do", how="count")).text == "1"
        async with box.open(1) as episode_tools:
            tools = ToolCaller(episode_tools)
            texts = await asyncio.gather(*(tools("do", how="count") for _ in range(8)))
            assert sorted(result.text for result in texts) == list("23456789")
            with pytest.raises(InfrastructureFailure, match=r"out of memory, 3 times"):
                await tools("do", how="die")
            assert tools.names == ["do"]
            assert (await tools("do", how="count")).text == "1"

    asyncio.run(run())


def test_shared_server_death_is_hidden_by_retries(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_server(RAW, shared=True, retries=1) as tools:
            crash_once = str(tmp_path / "died")
            calls = ["well", "well", crash_once, "well", "well"]
            results = await asyncio.gather(*(tools("do", how=how) for how in calls))
            assert [result.text for result in results] == calls and Path(crash_once).exists()

    asyncio.run(run())


def test_timeout_with_own_server_fails_the_episode_without_retry() -> None:
    async def run() -> None:
        async with open_server(RAW, timeout_s=0.3, retries=5) as tools:
            with pytest.raises(InfrastructureFailure, match=r"longer than 0\.3 s, once$"):
                await tools("do", how="stuck")

    asyncio.run(run())


async def call_until_answered(tools: ToolCaller, how: str) -> str:
    """Retry, since on a busy machine restarting the server can take longer than a call's timeout."""
    for _ in range(20):
        try:
            return (await tools("do", how=how)).text
        except InfrastructureFailure:
            continue
    raise AssertionError("it does not come back")


def test_shared_server_that_answers_no_call_is_restarted() -> None:
    async def run() -> None:
        async with open_server(RAW, shared=True, timeout_s=0.5, retries=0) as tools:
            assert await call_until_answered(tools, "count") == "1"
            with pytest.raises(InfrastructureFailure, match="longer than"):
                await tools("do", how="stuck")
            assert await call_until_answered(tools, "count") == "1"

    asyncio.run(run())


def test_shared_server_with_one_slow_call_is_not_restarted() -> None:
    async def run() -> None:
        async with open_server(RAW, shared=True, timeout_s=2.0, retries=0) as tools:
            assert await call_until_answered(tools, "count") == "1"
            waiting = asyncio.create_task(tools("do", how="silent"))
            await asyncio.sleep(0.3)
            await call_until_answered(tools, "count")
            with pytest.raises(InfrastructureFailure, match="longer than"):
                await waiting
            assert int(await call_until_answered(tools, "count")) > 2

    asyncio.run(run())


BAD_ANSWERS = {
    "noise": ("noise", False),
    "flood": ("flood", False),
    "huge": ("the answer is larger than 16 MiB: ask for less", True),
    "huge, number last": ("the answer is larger than 16 MiB: ask for less", True),
    "unpaired surrogate": ("the answer cannot be read", True),
    "refused": ("no such thing", True),
    "its own code": ("not today", True),
}
"""How the server answers -> text and failure that the agent sees."""


def test_bad_answer_affects_only_its_call() -> None:
    async def run() -> None:
        async with open_server(RAW) as tools:
            for number, (how, expected) in enumerate(BAD_ANSWERS.items(), 1):
                result = await tools("do", how=how)
                assert (result.text, result.failed) == expected, how
                assert (await tools("do", how="count")).text == str(number), "it is the same server"

    asyncio.run(run())


def test_internal_error_is_an_infrastructure_failure() -> None:
    async def run() -> None:
        async with open_server(RAW) as tools:
            with pytest.raises(InfrastructureFailure, match="disk full"):
                await tools("do", how="internal")

    asyncio.run(run())


def test_concurrent_starts_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        box = ToolBox([], [make_mcp_source({"mcp": RAW})])

        async def episode(seed: int) -> str:
            async with box.open(seed) as tools:
                return (await ToolCaller(tools)("do", how="count")).text

        assert await asyncio.gather(*map(episode, range(5))) == ["1"] * 5

    starting, peak, open_connection = 0, 0, connection.McpConnection.open

    async def counting_open(*arguments: object) -> object:
        nonlocal starting, peak
        starting += 1
        peak = max(peak, starting)
        try:
            return await open_connection(*arguments)
        finally:
            starting -= 1

    monkeypatch.setattr(connection.McpConnection, "open", counting_open)
    monkeypatch.setattr(source, "MAX_STARTING", 2)
    asyncio.run(run())
    assert peak == 2


NOISY = "import sys, time; print('{words}', flush=True); time.sleep({wait}); {then}"
"""Program that prints something that is not MCP, and continues."""


def python(code: str) -> str:
    return shlex.join([sys.executable, "-I", "-S", "-c", code])


def start_failure(mcp: str, **options: object) -> str:

    async def run() -> None:
        async with open_server(mcp, **options):
            pass

    with pytest.raises(InfrastructureFailure) as caught:
        asyncio.run(run())
    return str(caught.value)


@pytest.mark.parametrize("end", [r"\n", ""])
def test_start_failure_shows_output_of_program_that_exits(end: str) -> None:
    message = start_failure(python(f"print('usage: serve PORT', end='{end}')"))
    assert message.endswith("it exited with status 0; it printed: usage: serve PORT") and "\n" not in message


def test_start_fails_early_if_output_is_not_mcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "NOISE_SHARE", 0.0001)
    message = start_failure(python(NOISY.format(words="listening", wait=3600, then="")), start_timeout_s=1000)
    assert message.endswith("its output is not MCP; it printed: listening")


def test_start_of_silent_program_waits_for_the_timeout() -> None:
    message = start_failure(python("import time; time.sleep(600)"), start_timeout_s=0.2)
    assert message.endswith("it was not ready within 0.2 s")


def test_banner_before_first_message_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow list of tools is not an error once the server has spoken MCP."""
    wait_for_noise = transports.StdioTransport.wait_for_noise

    async def wait_for_the_first_message(transport: transports.StdioTransport, patience_s: float) -> None:
        while not transport._speaks_mcp:
            await asyncio.sleep(0.01)
        await wait_for_noise(transport, patience_s)

    monkeypatch.setattr(transports.StdioTransport, "wait_for_noise", wait_for_the_first_message)
    monkeypatch.setattr(connection, "NOISE_SHARE", 0.0001)
    setup = f"import json, runpy; handle = runpy.run_path({shlex.split(RAW)[-1]!r})['handle']"
    serve = "[('tools/list' in line and time.sleep(0.3), handle(json.loads(line))) for line in sys.stdin]"
    banner = NOISY.format(words="welcome", wait=0, then=f"{setup}; {serve}")

    async def run() -> None:
        async with open_server(python(banner), start_timeout_s=120) as tools:
            assert (await tools("do", how="well")).text == "well"

    asyncio.run(run())


def test_start_failure_redacts_keys_in_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELD", "sk-canary-printed")
    message = start_failure(python("import os; print('key', os.environ['KEY'])"), env={"KEY": "HELD"})
    assert message.endswith("it printed: key ***")
