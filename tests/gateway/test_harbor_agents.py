"""Agents that are programs inside of a Harbor task: exact tokens, rewards of the tests alone, and no way out."""

import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from harness_agents_for_tests import assert_exact, play_harbor_task
from turnwise.cli.main import main as command_line
from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.trajectory import Status
from turnwise.envs.agent.harness import Harness, Launch, MiniSwe, ModelAccess
from turnwise.gateway.harbor_agent import Program, check_tasks_are_hidden, find_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
ASK = """
import json, os, sys, urllib.request, urllib.error

def post(path, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    try:
        return json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as error:
        return {"status": error.code, "body": json.load(error)}

def ask(messages):
    reply = post("/chat/completions", {"model": "m", "messages": messages})["choices"][0]["message"]
    messages.append({"role": "assistant", "content": reply["content"]})
    return reply["content"]

messages = [{"role": "user", "content": sys.argv[1]}]
"""
DO_WHAT_IT_SAYS = ASK + (
    'while (command := ask(messages)) != "done":\n'
    '    messages.append({"role": "user", "content": os.popen(command).read() or "-"})\n'
)


class ProgramForTests(Harness, kind="for-tests"):
    """An agent in a few lines of Python, which gets the instruction as its argument."""

    program_name: ClassVar[str] = "sh"
    install_command: ClassVar[str] = ""
    code: str

    def launch(self, instruction: str, model: ModelAccess) -> Launch:
        return Launch(arguments=("-c", 'python3 -c "$0" "$1"', self.code, instruction), environment={"GREETING": "hi"})


def says_in_turn(*replies: str) -> Any:
    return lambda text, turn: replies[min(turn, len(replies) - 1)]


def test_agent_in_a_task_has_exact_tokens_and_the_reward_of_the_tests(tasks: Path) -> None:
    replies = says_in_turn("pwd; echo $GREETING", "echo ok > out.txt", "done")
    trajectory, policy = play_harbor_task(ProgramForTests(code=DO_WHAT_IT_SAYS), tasks, replies)
    assert (trajectory.status, trajectory.total_reward) == (Status.SUCCEEDED, 1.0)
    assert [turn.extends for turn in trajectory.turns] == [False, True, True]
    assert_exact(trajectory, policy)


def test_agent_that_does_nothing_gets_zero(tasks: Path) -> None:
    trajectory, _ = play_harbor_task(ProgramForTests(code=DO_WHAT_IT_SAYS), tasks, says_in_turn("done"))
    assert (trajectory.status, trajectory.total_reward, len(trajectory.turns)) == (Status.FAILED, 0.0, 1)


def test_agent_cannot_post_a_reward(tasks: Path) -> None:
    code = ASK + "ask(messages)\nprint(json.dumps(post('/turnwise/reward', {'reward': 1.0})))"
    trajectory, _ = play_harbor_task(ProgramForTests(code=code), tasks, says_in_turn("hello"))
    refused = json.loads(trajectory.turns[-1].info["output"])
    assert refused["status"] == 400 and "tests of the task" in json.dumps(refused["body"])
    assert trajectory.total_reward == 0.0


def test_agent_reaches_nothing_but_the_gateway(tasks: Path) -> None:
    code = ASK + (
        "import socket\nask(messages)\n"
        "def attempt(name, action):\n"
        "    try: action(); print(name)\n"
        "    except OSError: pass\n"
        f"attempt('tests', lambda: os.listdir({str(tasks)!r}))\n"
        f"attempt('host', lambda: os.stat({str(Path.cwd() / 'pyproject.toml')!r}))\n"
        "attempt('network', lambda: socket.create_connection(('1.1.1.1', 53), 1))\n"
        "attempt('memory', lambda: open('/proc/1/mem', 'r+b'))\n"
        "attempt('packets', lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))\n"
        "attempt('mount', lambda: os.system('mount -t tmpfs tmpfs /mnt 2> /dev/null') and os.stat('/missing'))\n"
        "attempt('relay', lambda: open('/run/turnwise/relay.py', 'a'))\n"
        "print('rest', sorted(int(name) for name in os.listdir('/proc') if name.isdigit())[0])"
    )
    trajectory, _ = play_harbor_task(ProgramForTests(code=code), tasks, says_in_turn("hello"))
    assert trajectory.turns[-1].info["output"] == "rest 1\n"


def test_agent_files_that_imitate_the_tests_change_nothing(tasks: Path) -> None:
    code = ASK + (
        "ask(messages)\n"
        "for folder in ('/tests', '/logs/verifier'): os.makedirs(folder, exist_ok=True)\n"
        "open('/logs/verifier/reward.txt', 'w').write('1')\n"
        "open('/tests/test.sh', 'w').write('echo 1 > /logs/verifier/reward.txt')\n"
    )
    trajectory, _ = play_harbor_task(ProgramForTests(code=code), tasks, says_in_turn("hello"))
    assert trajectory.total_reward == 0.0


def test_agent_that_takes_too_long_is_scored_as_truncated(tasks: Path) -> None:
    code = DO_WHAT_IT_SAYS + "\nimport time\ntime.sleep(600)"
    replies = says_in_turn("echo ok > out.txt", "done")
    trajectory, _ = play_harbor_task(ProgramForTests(code=code), tasks, replies, timeout_s=6.0)
    assert (trajectory.status, trajectory.total_reward) == (Status.TRUNCATED_TIME, 1.0)


def test_agent_that_fails_is_scored_or_retried(tasks: Path) -> None:
    code = DO_WHAT_IT_SAYS + "\nsys.exit('out of ideas')"
    replies = says_in_turn("echo ok > out.txt", "done")
    trajectory, _ = play_harbor_task(ProgramForTests(code=code), tasks, replies)
    assert (trajectory.status, trajectory.total_reward) == (Status.SUCCEEDED, 1.0)
    with pytest.raises(EnvironmentFailure, match="out of ideas"):
        play_harbor_task(ProgramForTests(code=code, train_on=()), tasks, replies)


def test_agent_without_a_call_is_a_failure(tasks: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"no model call.*nothing to do"):
        play_harbor_task(ProgramForTests(code="print('nothing to do')"), tasks, says_in_turn("hello"))


def find_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.setenv("PATH", str(folder))
    return find_program(MiniSwe())


def test_find_program_binds_what_a_program_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = tmp_path / "venv"
    script = write_program(venv / "bin" / "mini")
    (venv / "pyvenv.cfg").write_text(f"home = {tmp_path}/python/bin\n")
    link = tmp_path / "mini"
    link.symlink_to(script)
    for path in (script, link):
        program = find_in(path.parent, monkeypatch)
        assert program.command == (str(script),)
        assert program.folders == (str(venv), f"{tmp_path}/python")
    module = write_program(tmp_path / "lib" / "node_modules" / "agent" / "bin" / "mini")
    program = find_in(module.parent, monkeypatch)
    assert program.command == (str(module),)
    assert program.folders[0] == str(tmp_path / "lib" / "node_modules")
    alone = write_program(tmp_path / "alone" / "mini")
    assert find_in(alone.parent, monkeypatch) == Program(command=(str(alone),), folders=(str(alone),))


def test_find_program_names_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"PATH has no program mini.*install it with `pipx install mini-swe-agent &&"):
        find_in(tmp_path, monkeypatch)


def test_tasks_beside_the_program_are_refused(tmp_path: Path) -> None:
    program = Program(command=("x",), folders=(str(tmp_path),))
    with pytest.raises(UserError, match="move the tasks elsewhere"):
        check_tasks_are_hidden(program, str(tmp_path / "tasks"))
    check_tasks_are_hidden(program, str(tmp_path.parent / "tasks"))


def write_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_command_line_trains_an_agent_on_harbor_tasks(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of Python in place of mini-SWE-agent: it ignores the arguments but the last, the instruction."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "mini"
    program.write_text(f"#!/bin/sh\nfor last; do :; done\nexec python3 - \"$last\" <<'END'\n{ASK}ask(messages)\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    arguments = ["train", f"harbor:{tasks}", "--agent", "mini-swe"]
    small = ["--rollout.groups=1", "--rollout.group_size=2", "--rollout.max_new_tokens=4", "--train.mini_batch=2"]
    assert not command_line([*arguments, *small, "--dry-run"])
    assert 'agent = "mini-swe"' in capsys.readouterr().out
    assert not command_line([*arguments, *small, "--train.steps=1", "--eval.episodes=1", "--name=run"])
    assert "success after" in capsys.readouterr().out
    assert command_line(["train", "bandit", *arguments[2:], "--dry-run"])
    assert "bandit has no Harbor tasks, which agent" in capsys.readouterr().err
