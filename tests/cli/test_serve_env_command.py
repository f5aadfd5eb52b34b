"""`turnwise serve-env`."""

import json
import os
import signal
from pathlib import Path

import httpx2
import pytest
from websockets.sync.client import connect

from processes_for_tests import forked_with_output, run_turnwise
from turnwise.cli.main import main

TOKEN = {"Authorization": "Bearer secret"}


def test_serve_env_prints_how_to_train_and_obeys_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENV_TOKEN", "secret")
    command = ["serve-env", "lookup", "--port", "0", "--actions", "reply", "--token-env", "ENV_TOKEN"]
    command += ["--sessions", "1", "--idle-seconds", "1", "--step-seconds", "50", "--env.params.max_turns", "1"]
    with forked_with_output(run_turnwise, command, cwd=tmp_path) as (server, lines):
        served, train = lines.readline(), lines.readline()
        url = train.strip().rpartition("openenv:")[2]
        refused = httpx2.get(f"{url}/schema", timeout=60)
        schema = httpx2.get(f"{url}/schema", headers=TOKEN, timeout=60).json()
        address = url.replace("http", "ws") + "/ws"
        with connect(address, additional_headers=TOKEN, proxy=None) as first:
            with connect(address, additional_headers=TOKEN, proxy=None) as second:
                full = json.loads(second.recv())
            first.send(json.dumps({"type": "reset", "data": {}}))
            opening = json.loads(first.recv())
            first.send(json.dumps({"type": "step", "data": {"message": "no"}}))
            end = json.loads(first.recv())
            idle = json.loads(first.recv())
        os.kill(server.pid, signal.SIGINT)
    assert server.returncode == 0
    assert f"serving lookup at {url}, 1 session at most" in served and "train openenv:http://127.0.0.1:" in train
    assert refused.status_code == 401
    assert "message" in schema["action"]["properties"], "whole replies, though the environment has tools"
    assert full["data"]["code"] == "CAPACITY_REACHED"
    assert opening["type"] == "observation" and end["data"]["done"], "one turn"
    assert "idle for more than 1 s" in idle["data"]["message"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--host 0.0.0.0", "name a variable with a token for them with --token-env"),
        ("--token-env NOT_SET", "--token-env NOT_SET: the variable is not set"),
        ("--token-env a=b", "--token-env is not the name of a variable"),
        ("--actions dance", 'Choose from: "auto", "reply", "tools"'),
        ("--sessions 0", "--sessions"),
        ("--port 99999", "is not a port"),
    ],
)
def test_serve_env_mistakes_are_one_line(options: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-env", "frozen_lake", *options.split()]) == 2
    errors = capsys.readouterr().err
    assert problem in errors and len(errors.splitlines()) == 1
