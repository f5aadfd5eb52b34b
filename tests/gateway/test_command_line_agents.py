"""mini-SWE-agent, OpenCode, Codex CLI and Claude Code themselves, in a Harbor task, with a scripted model.

`make test-agents` installs them into .venv-agents.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness_agents_for_tests import assert_exact, call, play_harbor_task
from turnwise.core.trajectory import Status, Trajectory
from turnwise.envs.agent.harness import ClaudeCode, Codex, Harness, MiniSwe, OpenCode

AGENTS = Path(os.environ.get("TURNWISE_AGENTS", Path(__file__).parents[2] / ".venv-agents"))
PROGRAMS = {
    "mini-swe": (MiniSwe, "bin/mini"),
    "opencode": (OpenCode, "node_modules/.bin/opencode"),
    "codex": (Codex, "node_modules/.bin/codex"),
    "claude-code": (ClaudeCode, "node_modules/.bin/claude"),
}
SUMMARY = "SUMMARY-OF-THE-WORK"
MAX_CALLS = 40
CONTEXTS = {"codex": 60_000, "claude-code": 90_000, "opencode": 60_000}
"""Tokens of a context: above the first prompt, in tiny's tokens, and within reach of a few commands."""


@pytest.fixture
def agent() -> Callable[[str], Harness]:
    def find(name: str) -> Harness:
        chosen, path = PROGRAMS[name]
        if not (AGENTS / path).exists():
            pytest.skip(f"{name} is not installed: make test-agents")  # gigabytes, so not in make test
        return chosen(program=str(AGENTS / path))

    return find


def shell(name: str, command: str) -> str:
    """Return the agent's own call for a command."""
    if name == "codex":
        return call("exec_command", cmd=command)
    if name == "claude-code":
        return call("Bash", command=command, description="x")
    return call("bash", command=command, **({"description": "x"} if name == "opencode" else {}))


def last_reply(name: str) -> str:
    return shell(name, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT") if name == "mini-swe" else "It is done."


def num_contexts(trajectory: Trajectory) -> int:
    return len(list(trajectory.segments()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_agent_solves_a_task_with_exact_tokens(name: str, agent: Callable[[str], Harness], tasks: Path) -> None:
    texts = list[str]()

    def reply(text: str, turn: int) -> str:
        texts.append(text)
        commands = ("echo é MARK$((6 * 7))", "echo ok > out.txt; wc -c < out.txt")
        return shell(name, commands[turn]) if turn < 2 else last_reply(name)

    trajectory, policy = play_harbor_task(agent(name), tasks, reply)
    assert "MARK42" in texts[1] and "3" in texts[2].rpartition("<|tool|>")[2]  # no output is lost
    assert (trajectory.status, trajectory.total_reward) == (Status.SUCCEEDED, 1.0)
    assert [turn.extends for turn in trajectory.turns] == [False, True, True]
    assert_exact(trajectory, policy)


@pytest.mark.parametrize(("name", "tool"), [("claude-code", "Agent"), ("opencode", "task")])
def test_sub_agent_is_a_context_of_its_own(name: str, tool: str, agent: Callable[[str], Harness], tasks: Path) -> None:
    kind = "general-purpose" if name == "claude-code" else "general"
    delegate = call(tool, description="write", prompt="SUBTASK: write the file", subagent_type=kind)

    def reply(text: str, turn: int) -> str:
        if "SUBTASK" in text and delegate not in text:  # the sub-agent
            return shell(name, "echo ok > /app/out.txt") if turn == 0 else "I wrote it."
        return delegate if turn == 0 else "It is done."

    trajectory, policy = play_harbor_task(agent(name), tasks, reply)
    assert (trajectory.status, trajectory.total_reward) == (Status.SUCCEEDED, 1.0)
    assert num_contexts(trajectory) == 2
    assert_exact(trajectory, policy)


@pytest.mark.parametrize("name", CONTEXTS)
def test_compaction_starts_a_context_with_all_tokens_recorded(
    name: str, agent: Callable[[str], Harness], tasks: Path
) -> None:
    """The model prints much until the agent asks for a summary; then it solves the task."""
    calls = summaries = 0

    def reply(text: str, turn: int) -> str:
        nonlocal calls, summaries
        calls, last = calls + 1, text.rpartition("<|user|>")[2]
        if SUMMARY in text:
            return shell(name, "echo ok > /app/out.txt") if "out.txt" not in text.rpartition(SUMMARY)[2] else "Done."
        if calls > 1 and "<|tool|>" not in last and "summar" in last.lower():
            summaries += 1
            return f"<summary>{SUMMARY}</summary>"
        return shell(name, f"seq {1000 * calls} {1000 * calls + 900}") if calls < MAX_CALLS else "I give up."

    trajectory, policy = play_harbor_task(agent(name), tasks, reply, max_tokens=CONTEXTS[name], max_new_tokens=2_000)
    assert summaries and (trajectory.status, trajectory.total_reward) == (Status.SUCCEEDED, 1.0)
    assert num_contexts(trajectory) > 1
    assert_exact(trajectory, policy)
