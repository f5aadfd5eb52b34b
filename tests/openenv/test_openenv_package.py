"""The real OpenEnv as the other side: its validator and clients on our server, our training on its servers.

Its requirements clash with those of turnwise, so it has a Python environment of its own (.venv-openenv, `make test`).
"""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from runs_for_tests import metrics, quiet
from served_env_for_tests import serving, serving_in_thread
from turnwise.envs.adapters import server_process
from turnwise.envs.adapters.openenv.package_server import package_url
from turnwise.envs.registry import load_spec
from turnwise.record.run_folder import RunFolder
from turnwise.run.configure import configure
from turnwise.run.env_export import export_environment
from turnwise.run.train import train
from turnwise.run.training_traces import to_trace_row

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-openenv" / "bin" / "python"
SMALL = {
    "model.warmup_steps": "1",
    "rollout.groups": "2",
    "rollout.group_size": "2",
    "train.steps": "2",
    "train.mini_batch": "4",
    "eval.episodes": "1",
    "rollout.max_new_tokens": "16",
    "system.threads": "1",
    "env.params.max_turns": "3",
}


@pytest.fixture(scope="module", autouse=True)
def openenv(optional_part: Callable[..., NoReturn]) -> None:
    if not PYTHON.exists():
        optional_part("OpenEnv is not installed: make test installs it into .venv-openenv")


async def run_openenv(*arguments: str) -> str:
    """Run a program with OpenEnv's Python and return what it prints."""
    child = await asyncio.create_subprocess_exec(
        *(str(PYTHON), *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, error = await asyncio.wait_for(child.communicate(), 120)
    assert child.returncode == 0, (out + error).decode()[-2000:]
    return out.decode()


def train_on(server: str, folder: Path, **overrides: str) -> list[dict[str, Any]]:
    """Train for a few steps and return the recorded episodes."""
    given = {**SMALL, **overrides, "record.folder": str(folder), "record.name": "run"}
    train(configure(f"openenv:{server}", overrides=list(given.items())), console=quiet())
    assert [row["step"] for row in metrics(folder / "run") if "train/policy_loss" in row][-1:] == [2]
    run = RunFolder.open(folder / "run")
    return [run.read_trajectory(entry) for part in (None, "before", "after") for entry in run.read_index(part)]


def first_context(episode: dict[str, Any]) -> str:
    context: str = episode["turns"][0]["context"]
    return context


def test_openenv_validates_our_server() -> None:
    async def validate() -> dict[str, Any]:
        async with serving("frozen_lake") as server:
            report = await run_openenv("-m", "openenv.cli", "validate", "--json", "--url", server.url)
            return json.loads(report[report.index("{") :])  # type: ignore[no-any-return]

    report = asyncio.run(validate())
    assert report["passed"] and not report["summary"]["failed_criteria"] and report["mode"] == "simulation"


def test_openenv_client_plays_on_our_server() -> None:
    async def play() -> dict[str, Any]:
        async with serving("frozen_lake") as server:
            actions = [{"message": "<answer>Left</answer>"}, {"message": "hello"}]
            arguments = json.dumps({"split": "test", "index": 3, "episode_id": "e"})
            script = str(HERE / "generic_client.py")
            played = await run_openenv(script, server.url, arguments, json.dumps(actions))
            return json.loads(played)  # type: ignore[no-any-return]

    played = asyncio.run(play())
    opening, *steps = played["results"]
    assert [message["role"] for message in opening["observation"]["messages"]] == ["system", "user"]
    assert [step["metadata"]["invalid"] for step in steps] == [False, True]
    assert played["state"] == {"episode_id": "e", "step_count": 2, "split": "test", "index": 3}


def test_openenv_mcp_client_calls_our_tools() -> None:
    async def call() -> dict[str, Any]:
        async with serving("lookup") as server:
            arguments = (json.dumps({"seed": 1}), "room", json.dumps({"name": "Nobody"}))
            called = await run_openenv(str(HERE / "tool_client.py"), server.url, *arguments)
            assert len(server.sessions) == 0
            return json.loads(called)  # type: ignore[no-any-return]

    called = asyncio.run(call())
    assert called["tools"] == ["room", "answer"]
    assert called["result"]["content"][0]["type"] == "text" and isinstance(called["answered"], str | dict)


TURN = {"extends": True, "turn_reward": 0.5, "temperature": 1.0}
EPISODE = {
    "step": 1,
    "group": 0,
    "member": 0,
    "attempt": 0,
    "task": {},
    "reward": 1.0,
    "status": "succeeded",
    "turns": [
        {**TURN, "context_ids": [5, 6, 7], "action_ids": [8, 9], "action_logprobs": [-0.5, 0.0]},
        {**TURN, "context_ids": [10], "action_ids": [11], "action_logprobs": [-2.0]},
    ],
}


def test_openenv_accepts_our_training_traces() -> None:
    """They are read strictly, as TRL reads them."""
    check = (
        "import sys; from openenv.core.harness.training import TrainingTrace; "
        "trace = TrainingTrace.model_validate_json(sys.argv[1]); print(len(trace.to_trace_entries()))"
    )
    trace = json.dumps(to_trace_row(EPISODE)["trace"])
    assert asyncio.run(run_openenv("-c", check, trace)).strip() == "2"


def test_our_client_trains_on_our_server(tmp_path: Path) -> None:
    with serving_in_thread("frozen_lake") as server:
        played = train_on(server.url, tmp_path)
        assert len(played) >= 8 and all("Walk over the ice" in first_context(episode) for episode in played)
        assert len(server.sessions) == 0


def test_our_client_trains_on_openenvs_echo_environment(tmp_path: Path) -> None:
    """OpenEnv's template is the echo environment. It has one session and no end: episodes wait for it."""
    subprocess.run([PYTHON, "-m", "openenv.cli", "init", "echo_env"], cwd=tmp_path, check=True, capture_output=True)
    try:
        played = train_on(str(tmp_path / "echo_env"), tmp_path, **{"env.params.python": str(PYTHON)})
    finally:
        server_process.end_servers()
    assert len(played) >= 8
    assert all("environment ready!" in first_context(episode) and len(episode["turns"]) == 3 for episode in played)


def test_our_client_trains_on_a_stateful_environment_of_openenv(tmp_path: Path) -> None:
    folder = shutil.copytree(HERE / "number_env", tmp_path / "number_env")
    try:
        played = train_on(str(folder), tmp_path, **{"env.params.python": str(PYTHON)})
    finally:
        server_process.end_servers()
    assert len(played) >= 8
    assert all("I think of a number from 1 to 8." in first_context(episode) for episode in played)


def test_openenv_serves_an_exported_environment(tmp_path: Path) -> None:
    folder = export_environment(load_spec("frozen_lake"), {}, "openenv", tmp_path / "exported")
    report = asyncio.run(run_openenv("-m", "openenv.cli", "validate", str(folder), "--level", "static", "--json"))
    assert json.loads(report)["verdict"] == "pass"
    url = package_url(str(folder), None)
    try:
        checked = asyncio.run(run_openenv("-m", "openenv.cli", "validate", "--json", "--url", url))
        actions = json.dumps([{"message": "<answer>Left</answer>"}])
        script = str(HERE / "generic_client.py")
        arguments = json.dumps({"split": "test", "index": 3, "episode_id": "e"})
        played = json.loads(asyncio.run(run_openenv(script, url, arguments, actions)))
    finally:
        server_process.end_servers()
    assert json.loads(checked[checked.index("{") :])["passed"]
    assert played["state"] == {"episode_id": "e", "step_count": 1, "split": "test", "index": 3}
