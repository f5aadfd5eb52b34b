"""Servers that die, hang, flood and lie: whose fault it is, what the agent sees, what is run again."""

import asyncio
import shlex
import sys
from pathlib import Path

import pytest

from mcp_ground_for_tests import RAW, SERVER, Hands, opened
from mcp_server_for_tests import HOSTILE, MEGABYTE
from turnwise.core.errors import InfrastructureFailure, UserError
from turnwise.tools.mcp import connection, source
from turnwise.tools.mcp.options import make_mcp_source
from turnwise.tools.toolbox import ToolBox


def test_a_server_made_with_the_sdk_over_stdio() -> None:
    """One that speaks the newest protocol; starting it takes a second, so that all is asked of one."""

    async def run() -> None:
        async with opened(SERVER, max_output=1000) as tools:
            assert ((await tools("add", a=2, b=3)).text, (await tools("add", a=2, b=3)).failed) == ("5", False)
            refused = await tools("refuse", why="too late")
            assert refused.failed and "too late" in refused.text
            assert (await tools("add", a="two", b=3)).text == "add: a: 'two' is not of type 'integer'"
            assert (await tools("say")).text == HOSTILE
            assert (await tools("refuse", why="\ud800 x")).text == (
                "refuse: the arguments contain half a character: leave it out"
            )
            await a_megabyte_is_cut(tools)
            await a_call_given_up_is_cancelled_at_the_server(tools)
            await a_changed_list_is_known(tools)
            with pytest.raises(InfrastructureFailure, match="it ended with status 3; it said: out of luck"):
                await tools("crash")

    asyncio.run(run())


async def a_megabyte_is_cut(tools: Hands) -> None:
    long = (await tools("megabyte")).text
    assert long.startswith("firstxxx") and long.endswith("xxxlast") and len(long) < 1100
    assert f"[{MEGABYTE + 9 - 1000} characters cut]" in long


async def a_call_given_up_is_cancelled_at_the_server(tools: Hands) -> None:
    given_up = asyncio.create_task(tools("hang"))
    while (await tools("hung")).text != "1 0":
        await asyncio.sleep(0.01)
    given_up.cancel()
    await asyncio.wait([given_up])
    assert given_up.cancelled()
    assert (await tools("hung")).text == "1 1"


async def a_changed_list_is_known(tools: Hands) -> None:
    """The newer protocol tells those who have subscribed."""
    before = set(tools.names)
    await tools("learn")
    assert set(tools.names) == before - {"learn"} | {"plus"}
    assert (await tools("plus", a=1, b=2)).text == "3"
    assert "no tool 'learn'" in (await tools("learn")).text


def test_the_older_protocol_notifies_of_a_changed_list() -> None:
    async def run() -> None:
        async with opened(RAW, prefix="raw_") as tools:
            assert tools.names == ["raw_do"]
            await tools("raw_do", how="more tools")
            assert tools.names == ["raw_do", "raw_late"]
            assert not (await tools("raw_late")).failed

    asyncio.run(run())


def test_a_tool_that_a_server_does_not_have_is_the_users_mistake() -> None:
    async def run() -> None:
        async with opened(RAW, tools=["d0"]):
            pass

    with pytest.raises(UserError, match=r"it has no tool d0: there are do"):
        asyncio.run(run())


def test_episodes_have_servers_of_their_own() -> None:
    async def run() -> None:
        box = ToolBox([], [make_mcp_source({"mcp": RAW})])
        async with box.open(0) as one, box.open(1) as other:
            assert [(await Hands(one)("do", how="count")).text for _ in range(2)] == ["1", "2"]
            assert (await Hands(other)("do", how="count")).text == "1"

    asyncio.run(run())


def test_a_server_that_dies_in_mid_call_ends_its_episode_with_its_last_words() -> None:
    async def run() -> None:
        async with opened(RAW, retries=5) as tools:
            with pytest.raises(InfrastructureFailure) as failure:
                await tools("do", how="die")
            with pytest.raises(InfrastructureFailure, match="SIGKILL"):
                await tools("do", how="well")
        said = str(failure.value)
        assert said.endswith("Connection closed; it was killed by SIGKILL; it said: out of luck") and "\n" not in said

    asyncio.run(run())


def test_a_shared_server_keeps_its_state_over_episodes_and_is_started_again_when_it_dies() -> None:
    async def run() -> None:
        box = ToolBox([], [make_mcp_source({"mcp": RAW, "shared": True})])
        async with box.open(0) as tools:
            assert (await Hands(tools)("do", how="count")).text == "1"
        async with box.open(1) as opened_hands:
            tools = Hands(opened_hands)
            texts = await asyncio.gather(*(tools("do", how="count") for _ in range(8)))
            assert sorted(result.text for result in texts) == list("23456789")
            with pytest.raises(InfrastructureFailure, match=r"out of luck, 3 times"):
                await tools("do", how="die")
            assert tools.names == ["do"]
            assert (await tools("do", how="count")).text == "1"

    asyncio.run(run())


def test_the_death_of_a_shared_server_goes_unnoticed_where_calls_may_be_retried(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(RAW, shared=True, retries=1) as tools:
            mark = str(tmp_path / "died")
            calls = ["well", "well", mark, "well", "well"]
            told = await asyncio.gather(*(tools("do", how=how) for how in calls))
            assert [result.text for result in told] == calls and Path(mark).exists()

    asyncio.run(run())


def test_a_call_that_takes_too_long_is_the_episodes_end_where_the_server_is_its_own() -> None:
    async def run() -> None:
        async with opened(RAW, timeout_s=0.3, retries=5) as tools:
            with pytest.raises(InfrastructureFailure, match=r"longer than 0\.3 s, once$"):
                await tools("do", how="deaf")

    asyncio.run(run())


async def patiently(tools: Hands, how: str) -> str:
    """A machine may be so busy that starting again takes longer than a call may."""
    for _ in range(20):
        try:
            return (await tools("do", how=how)).text
        except InfrastructureFailure:
            continue
    raise AssertionError("it does not come back")


def test_a_shared_server_that_answers_nobody_is_started_again() -> None:
    async def run() -> None:
        async with opened(RAW, shared=True, timeout_s=0.5, retries=0) as tools:
            assert await patiently(tools, "count") == "1"
            with pytest.raises(InfrastructureFailure, match="longer than"):
                await tools("do", how="deaf")
            assert await patiently(tools, "count") == "1"

    asyncio.run(run())


def test_a_shared_server_that_lets_only_one_wait_is_left_alone() -> None:
    async def run() -> None:
        async with opened(RAW, shared=True, timeout_s=2.0, retries=0) as tools:
            assert await patiently(tools, "count") == "1"
            waiting = asyncio.create_task(tools("do", how="silent"))
            await asyncio.sleep(0.3)
            await patiently(tools, "count")
            with pytest.raises(InfrastructureFailure, match="longer than"):
                await waiting
            assert int(await patiently(tools, "count")) > 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("how", "text", "failed"),
    [
        ("noise", "noise", False),
        ("flood", "flood", False),
        ("huge", "the answer is larger than 16 MiB: ask for less", True),
        ("huge, number last", "the answer is larger than 16 MiB: ask for less", True),
        ("half a character", "the answer cannot be read", True),
        ("refused", "no such thing", True),
        ("its own code", "not today", True),
    ],
)
def test_what_a_server_does_wrong_with_one_call_is_that_calls_alone(how: str, text: str, failed: bool) -> None:
    async def run() -> None:
        async with opened(RAW) as tools:
            result = await tools("do", how=how)
            assert (result.text, result.failed) == (text, failed)
            assert (await tools("do", how="well")).text == "well"

    asyncio.run(run())


def test_an_internal_error_is_not_the_agents_fault() -> None:
    async def run() -> None:
        async with opened(RAW) as tools:
            with pytest.raises(InfrastructureFailure, match="disk full"):
                await tools("do", how="internal")

    asyncio.run(run())


def test_many_servers_start_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        box = ToolBox([], [make_mcp_source({"mcp": RAW})])

        async def episode(seed: int) -> str:
            async with box.open(seed) as tools:
                return (await Hands(tools)("do", how="count")).text

        assert await asyncio.gather(*map(episode, range(12))) == ["1"] * 12

    starting, most, really = 0, 0, connection.McpConnection.open

    async def counted(*given: object) -> object:
        nonlocal starting, most
        starting += 1
        most = max(most, starting)
        try:
            return await really(*given)
        finally:
            starting -= 1

    monkeypatch.setattr(connection.McpConnection, "open", counted)
    asyncio.run(run())
    assert 1 <= most <= source.STARTS_AT_ONCE


NOISY = "import sys, time; print('{words}', flush=True); time.sleep({wait}); {then}"
"""A program that writes to its output what is no MCP, and goes on."""


def python(code: str) -> str:
    return shlex.join([sys.executable, "-I", "-S", "-c", code])


def failure_of(mcp: str, **options: object) -> str:
    """How its start fails."""

    async def run() -> None:
        async with opened(mcp, **options):
            pass

    with pytest.raises(InfrastructureFailure) as caught:
        asyncio.run(run())
    return str(caught.value)


@pytest.mark.parametrize("end", [r"\n", ""])
def test_a_command_that_ends_without_a_word_of_mcp_is_told_with_what_it_printed(end: str) -> None:
    said = failure_of(python(f"print('usage: serve PORT', end='{end}')"))
    assert said.endswith("it ended with status 0; it printed: usage: serve PORT") and "\n" not in said


def test_one_that_prints_other_things_and_stays_is_given_up_before_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "NOISE_SHARE", 0.001)
    said = failure_of(python(NOISY.format(words="listening", wait=3600, then="")), start_timeout_s=1000)
    assert said.endswith("it writes to its output what is no MCP; it printed: listening")


def test_one_that_is_silent_has_all_of_its_time_and_its_end_is_not_told_as_its_own() -> None:
    said = failure_of(python("import time; time.sleep(600)"), start_timeout_s=1)
    assert said.endswith("it was not ready within 1 s")


def test_a_banner_before_the_first_answer_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its list of tools takes: it has spoken."""
    monkeypatch.setattr(connection, "NOISE_SHARE", 0.025)
    serves = f"import json, runpy; answer = runpy.run_path({shlex.split(RAW)[-1]!r})['answer']"
    late = "[('tools/list' in line and time.sleep(3.3), answer(json.loads(line))) for line in sys.stdin]"
    banner = NOISY.format(words="welcome", wait=0.1, then=f"{serves}; {late}")

    async def run() -> None:
        async with opened(python(banner), start_timeout_s=120) as tools:
            assert (await tools("do", how="well")).text == "well"

    asyncio.run(run())


def test_a_key_that_a_command_prints_stays_unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELD", "sk-canary-printed")
    said = failure_of(python("import os; print('key', os.environ['KEY'])"), env={"KEY": "HELD"})
    assert said.endswith("it printed: key ***")
