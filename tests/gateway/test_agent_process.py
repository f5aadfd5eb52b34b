"""Agents that are programs: what they get, what is kept of them, and that nothing is left of them."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from turnwise.core.errors import UserError
from turnwise.gateway.agent_process import (
    MAX_OUTPUT,
    MAX_TASK,
    ProgramResult,
    build_environment,
    run_program,
    split_command,
)
from work_for_tests import HANG_S, wait_until


def run_code(
    code: str, folder: Path, *arguments: str, task: object = None, environment: dict[str, str] | None = None
) -> ProgramResult:
    command = (sys.executable, "-c", code, *arguments)
    program = run_program(command, task=json.dumps(task), folder=folder, environment=environment or {})
    return asyncio.run(asyncio.wait_for(program, HANG_S))


def test_program_gets_its_task_as_one_word_and_as_a_file(tmp_path: Path) -> None:
    task = {"question": "a 'b' $(touch x) {task_file} é"}
    code = "import json, sys; print(json.loads(sys.argv[1]) == json.load(open(sys.argv[2])), sys.argv[3])"
    result = run_code(code, tmp_path, "{task}", "{task_file}", "x{task_file}", task=task["question"])
    assert result.status == 0
    assert result.output.split() == ["True", f"x{tmp_path / 'task.json'}"]
    assert [path.name for path in tmp_path.iterdir()] == ["task.json"]


def test_program_runs_in_its_folder_without_input(tmp_path: Path) -> None:
    result = run_code("import os, sys; print(os.getcwd(), repr(sys.stdin.read()))", tmp_path)
    assert result.output.split() == [str(tmp_path), "''"]


def test_environment_excludes_variables_that_may_be_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET", "hidden")
    monkeypatch.setenv("AGENT_MODE", "fast")
    environment = build_environment(["AGENT_MODE"])
    assert "AWS_SECRET" not in environment and environment["AGENT_MODE"] == "fast"
    result = run_code("import os; print(*os.environ)", tmp_path, environment=environment)
    assert "AWS_SECRET" not in result.output.split() and "PATH" in result.output.split()


@pytest.mark.parametrize(("names", "reason"), [(["NOT_SET_HERE"], "is not set"), (["A=b"], "is not the name")])
def test_environment_rejects_invalid_variable_names(names: list[str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        build_environment(names)


@pytest.mark.parametrize(
    ("code", "status", "is_infrastructure", "text"),
    [
        ("print('done')", 0, False, "it exited with status 0: done"),
        ("raise ValueError('bad reply')", 1, False, "it exited with status 1: ValueError: bad reply"),
        ("import sys; sys.exit(75)", 75, True, "it exited with status 75"),
        ("import sys; sys.exit(125)", 125, True, "it exited with status 125"),
        ("import sys; sys.exit(124)", 124, False, "it exited with status 124"),
        ("import os; os.kill(os.getpid(), 9)", 137, True, "it was killed by SIGKILL"),
    ],
)
def test_result_describes_how_the_program_ended(
    tmp_path: Path, code: str, status: int, is_infrastructure: bool, text: str
) -> None:
    result = run_code(code, tmp_path)
    assert (result.status, result.is_infrastructure_failure, result.describe()) == (status, is_infrastructure, text)


def test_output_is_bounded_and_its_end_is_kept(tmp_path: Path) -> None:
    result = run_code(f"print('x' * {3 * MAX_OUTPUT}); print('the end')", tmp_path)
    assert len(result.output) == MAX_OUTPUT and result.output.endswith("the end\n")


def test_cancelled_program_is_killed_with_its_descendants(tmp_path: Path) -> None:
    """A child in a session of its own is found too."""
    child = "import os, time; open('child', 'w').write(str(os.getpid())); time.sleep(600)"
    code = (
        "import subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True); time.sleep(600)"
    )

    async def run_and_cancel() -> int:
        program = run_program((sys.executable, "-c", code), task="0", folder=tmp_path, environment={})
        running = asyncio.create_task(program)
        async with asyncio.timeout(HANG_S):
            while not (tmp_path / "child").is_file() or not (tmp_path / "child").read_text():
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()
        return int((tmp_path / "child").read_text())

    pid = asyncio.run(run_and_cancel())
    assert wait_until(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_task_that_is_too_long_for_a_command_line_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"too many for a command line: write \{task_file\}"):
        run_code("pass", tmp_path, "{task}", task="x" * MAX_TASK)
    code = "import sys; print(len(open(sys.argv[1]).read()))"
    assert int(run_code(code, tmp_path, "{task_file}", task="x" * MAX_TASK).output) == MAX_TASK + 2


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("python 'agent.py", "close the quotes"),
        ("  ", "is empty"),
        ("no-such-program-here {task}", "there is no program no-such-program-here"),
        ("python agent.py --api-key sk-abcdefghijklmnopqrst", "agent.pass_env"),
    ],
)
def test_split_command_rejects_invalid_commands(command: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        split_command(command)
