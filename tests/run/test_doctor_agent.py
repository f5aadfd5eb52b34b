"""`turnwise doctor --agent`: it names the limit that cut a reply off, and the reason if no call was answered."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from episodes_for_tests import turn_of
from harbor_for_tests import write_task
from turnwise.cli.main import main
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.run.doctor_agent import check_agent, explain_cut

AGENT = """
async def chat(client, task):
    messages = [{"role": "user", "content": "word " * 2000}]
    await client.chat.completions.create(model="policy", messages=messages)
    return 1.0
"""
SETTINGS = """
[agent]
function = "agent.py:chat"
tasks = "tasks.jsonl"

[rollout]
max_new_tokens = 4
"""
MINI = """#!/usr/bin/env python3
import json, os, urllib.request

headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)).read()
open("out.txt", "w").write("train")
"""
CHECK = """grep -qx {} /app/out.txt; echo $((1 - $?)) > /logs/verifier/reward.txt"""


@pytest.mark.parametrize(
    ("asked", "tokens", "reason"),
    [
        ({"max_tokens": 3}, 3, "the agent itself asked for at most 3 tokens"),
        ({"max_completion_tokens": 3, "max_tokens": 9}, 3, "the agent itself asked for at most 3 tokens"),
        ({"max_output_tokens": 3}, 3, "the agent itself asked for at most 3 tokens"),
        ({}, 8, "raise rollout.max_new_tokens 8"),
        ({"max_tokens": 100}, 8, "raise rollout.max_new_tokens 8"),
        ({"max_tokens": 100}, 5, "the context was full: raise rollout.max_tokens 64"),
    ],
)
def test_doctor_names_the_limit_that_cut_a_reply_off(asked: dict[str, Any], tokens: int, reason: str) -> None:
    config = Config.model_validate({"rollout": {"max_new_tokens": 8, "max_tokens": 64}})
    assert explain_cut(config, turn_of([1], [2] * tokens, info={"asked": asked})).startswith(reason)


def test_doctor_names_the_setting_that_refused_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text(AGENT)
    Path("agent.toml").write_text(SETTINGS)
    rows = [{"question": f"{split}?", "split": split} for split in ("train", "validation", "test")]
    Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"refused the agent's model calls: .*tokens \(rollout.max_tokens\)"):
        check_agent("agent.toml", [("rollout.max_tokens", "64")])


@pytest.fixture
def mini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that asks its model once, then does what its task wants."""
    program = tmp_path / "bin" / "mini"
    program.parent.mkdir()
    program.write_text(MINI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
@pytest.mark.parametrize("tasks", [[], ["harbor:tasks"]])
def test_doctor_plays_a_task_with_a_command_line_agent(
    mini: None, tasks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "validation", "test"):
        settings = f'[metadata]\nsplit = "{split}"\n'
        write_task(Path("tasks", split), instruction=f"Say {split}.", test=CHECK.format(split), settings=settings)
    assert main(["doctor", *tasks, "--agent", "mini-swe", "--env.params.memory_mb", "1024"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^agent +mini-swe, .*/bin/mini$", printed, re.MULTILINE)
    assert re.search(rf"^task +{'Say train' if tasks else 'Write train into /app/out.txt'}\.$", printed, re.MULTILINE)
    assert re.search(r"^calls +1 captured, in 1 context$", printed, re.MULTILINE)
    assert re.search(r"^reward +1 \(succeeded\)$", printed, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["harbor:tasks"], "harbor:tasks has an effect only beside --agent, a command-line agent such as mini-swe"),
        (["harbor:tasks", "--agent", "agent.toml"], "harbor:tasks has no effect beside a settings file"),
        (["bandit", "--agent", "mini-swe"], "bandit has no Harbor tasks"),
    ],
)
def test_doctor_refuses_tasks_that_no_agent_plays(
    mini: None, words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("agent.toml").write_text('[agent]\ncommand = "echo"\ntasks = "tasks.jsonl"\n')
    Path("tasks.jsonl").write_text('{"question": "1?", "split": "train"}\n')
    assert main(["doctor", *words]) == 2
    assert reason in capsys.readouterr().err
