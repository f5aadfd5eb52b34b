"""Loaded checkpoints: how many there are, and how their processes end."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from turnwise.core.errors import UserError
from turnwise.studio.agent_requests import AgentCommand, AgentRequest
from turnwise.studio.agents import Agent, Agents
from work_for_tests import wait_until

REQUEST = AgentRequest(run="runs/one")


def worker(body: str) -> Sequence[str]:
    """Return a program in place of the real worker, which loads a model. `read()` returns a request."""
    start = """
        import json, os, subprocess, sys, time
        read = lambda: json.loads(sys.stdin.readline() or "null")
        def write(**answer):
            print(json.dumps(answer), flush=True)
    """
    return (sys.executable, "-c", dedent(start) + dedent(body))


ECHO = worker(
    """
    while (request := read()) is not None:
        write(environments=[], got=request)
    """
)


def answer_of(agent: Agent) -> dict[str, object]:
    """Wait for the answer to the last request."""
    assert wait_until(lambda: not agent.describe(after=-1)["busy"])
    answer: dict[str, object] = agent.describe(after=-1)["answer"]
    return answer


@pytest.fixture
def agents() -> Iterator[Agents]:
    with Agents(worker=ECHO) as opened:
        yield opened


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_answers_have_versions(agents: Agents) -> None:
    agent = agents.load(REQUEST, "one")
    assert answer_of(agent)["got"] == REQUEST.model_dump()
    assert "answer" not in agent.describe(after=1)
    agent.command(AgentCommand(do="say", text="hi"))
    got = answer_of(agent)["got"]
    assert isinstance(got, dict)
    assert got["text"] == "hi"
    assert agent.describe(after=1)["version"] == 2


def test_episode_is_known_for_its_states() -> None:
    with Agents(worker=worker("read(); write(episode={'row': {'turns': []}})")) as agents:
        agent = agents.load(REQUEST, "one")
        answer_of(agent)
        assert agent.episode_row() == {"turns": []}


def test_number_of_loaded_checkpoints_is_bounded(agents: Agents) -> None:
    first = agents.load(REQUEST, "one")
    agents.load(REQUEST, "two")
    with pytest.raises(UserError, match=r"2 checkpoints are loaded, of one and two\. Close one"):
        agents.load(REQUEST, "three")
    agents.close(first.id)
    assert first.ended
    assert agents.load(REQUEST, "three") in agents.list()
    with pytest.raises(UserError, match="no longer loaded"):
        agents.find(first.id)


def test_busy_checkpoint_refuses_commands() -> None:
    with Agents(worker=worker("time.sleep(600)")) as agents:
        agent = agents.load(REQUEST, "one")
        with pytest.raises(UserError, match="busy"):
            agent.command(AgentCommand(do="sample"))


def test_idle_checkpoint_is_dropped() -> None:
    with Agents(worker=ECHO, idle_s=0.5, check_s=0.05) as agents:
        agent = agents.load(REQUEST, "one")
        assert wait_until(lambda: not agents.list())
        assert wait_until(lambda: agent.ended)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("read(); sys.exit('No module named torch')", "No module named torch"),
        ("read(); os._exit(3)", "exit status 3"),
        ("read(); os.kill(os.getpid(), 9)", "perhaps memory ran out"),
        ("read(); write(error='the model is damaged')", "the model is damaged"),
    ],
)
def test_end_of_the_process_is_explained(body: str, reason: str) -> None:
    with Agents(worker=worker(body)) as agents:
        agent = agents.load(REQUEST, "one")
        assert reason in str(answer_of(agent)["error"])
        assert wait_until(lambda: agent.ended)
        with pytest.raises(UserError, match="no longer loaded"):
            agent.command(AgentCommand(do="sample"))
        agents.load(REQUEST, "two")
        assert agents.list() != [agent]
        assert agent not in agents.list()


def test_processes_of_the_environment_end_with_the_checkpoint(tmp_path: Path) -> None:
    """The environment started a server, and then hangs."""
    body = f"""
        server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({str(tmp_path / "pid")!r}, "w").write(str(server.pid))
        write(environments=[])
        time.sleep(600)
    """
    with Agents(worker=worker(body)) as agents:
        answer_of(agents.load(REQUEST, "one"))
        pid = int((tmp_path / "pid").read_text())
        assert is_running(pid)
    assert wait_until(lambda: not is_running(pid))
