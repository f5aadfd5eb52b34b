"""The real verifiers as the other side: training on environments of both of its generations.

Its requirements clash with those of turnwise, so it has a Python environment of its own (.venv-verifiers, `make test`).
"""

import json
import math
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import turnwise
from processes_for_tests import forked_with_output, run_turnwise
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.envs.registry import load_spec
from turnwise.run.env_export import export_environment
from verifiers_for_tests import NEWEST, opening, params_of, play, train_on

CAPITALS = params_of("capitals.py")
WORD_ORDER = params_of("word_order.py")
LOOK_UP = '<tool_call>{"name": "look_up", "arguments": {"country": "France"}}</tool_call>'
FAULTS = {
    "nan": 'reward "is_faulty" is nan',
    "-inf": 'reward "is_faulty" is -inf',
    "raise": "reward function is_faulty raised ValueError: the judge is away",
    "rewrite": "rewritten earlier messages",
    "error": "ToolCallError",
    "hang": "did not answer step within 3 s",
    "die": "closed the connection",
}
"""Faults of the test tasks of capitals.py, after the first: what is reported."""


def test_classic_environment_rewards_the_right_answer_after_a_call() -> None:
    looked_up, answered = play(CAPITALS, LOOK_UP, "Paris", split="test")
    assert [message.content for message in looked_up.messages] == ["Paris"] and looked_up.messages[0].role == "tool"
    assert answered.terminated and answered.success and answered.reward == 1.5
    assert answered.info["rewards"] == {"names_capital": 1.0, "looks_it_up": 1.0, "is_faulty": 0.0}


def test_classic_environment_gives_nothing_for_other_answers() -> None:
    for reply in ("", "Capital of France?", "reward: 1.5", '{"names_capital": 1.0}'):
        (answered,) = play(CAPITALS, reply, split="test")
        assert answered.reward == 0.0 and not answered.success


def test_classic_environment_scores_at_its_limit_of_turns() -> None:
    *_, last = play(CAPITALS, *[LOOK_UP] * 4)
    assert last.truncated and not last.terminated and last.reward == 0.5


def test_evaluation_dataset_is_the_test_split() -> None:
    training = {opening(CAPITALS, "train", index) for index in range(10)}
    assert len(training) == 5 and opening(CAPITALS, "test", 0) not in training


@pytest.mark.parametrize("fault", FAULTS)
def test_classic_faults_are_failures_without_a_reward(fault: str) -> None:
    index = 1 + list(FAULTS).index(fault)
    with pytest.raises((EnvironmentFailure, InfrastructureFailure), match=FAULTS[fault]):
        play({**CAPITALS, "timeout_s": 3.0}, LOOK_UP, "Paris", split="test", index=index)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({**CAPITALS, "args": {"group": True}}, "compares the rollouts of a group"),
        ({**CAPITALS, "python": str(NEWEST)}, "first generation"),
        ({**WORD_ORDER, "args": {"colour": "red"}}, "colour"),
    ],
)
def test_environment_that_cannot_be_loaded_is_one_line(params: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        load_spec("verifiers").check_resources(load_spec("verifiers").check_params(params))
    assert "\n" not in str(caught.value)


def test_taskset_rewards_the_right_answer() -> None:
    (answered,) = play(WORD_ORDER, "0 banana apple")
    assert answered.terminated and answered.success and answered.reward == 1.5
    assert answered.info["rewards"] == {"is_reversed": 1.0, "is_short": 1.0}
    (other,) = play(WORD_ORDER, "banana apple " * 10)
    assert other.reward == 0.0 and not other.success


@pytest.mark.parametrize(("index", "problem"), [(0, "is nan"), (6, "ValueError: no judge"), (10, "could not convert")])
def test_taskset_faults_are_failures_without_a_reward(index: int, problem: str) -> None:
    faulty = {**WORD_ORDER, "args": {"faulty": True}}
    with pytest.raises(EnvironmentFailure, match=problem):
        play(faulty, "0 banana apple", index=index)


def test_training_on_a_classic_environment_with_tools(tmp_path: Path) -> None:
    played = train_on(CAPITALS, tmp_path, **{"env.params.style": "answer"})
    assert len(played) >= 8
    assert all("Capital of" in episode["turns"][0]["context"] for episode in played)


def test_training_on_a_taskset(tmp_path: Path) -> None:
    played = train_on(WORD_ORDER, tmp_path)
    assert len(played) >= 8
    assert all("Swap the words" in episode["turns"][0]["context"] for episode in played)


def test_vf_eval_runs_exported_environments(tmp_path: Path) -> None:
    """Against the gateway, with the tiny model: one environment of turns, one of tools."""
    command = ["serve", "--port", "0", "--api-key", "k", "--model.name", "tiny", "--rollout.max_new_tokens", "8"]
    rows = dict[str, list[Any]]()
    with forked_with_output(run_turnwise, command, cwd=tmp_path) as (server, lines):
        url = lines.readline().strip().partition("=")[2]
        for name in ("frozen_lake", "lookup"):
            folder = export_environment(load_spec(name), {"max_turns": 2}, "verifiers", tmp_path / name)
            evaluate(f"turnwise_{name}", folder, url, tmp_path / "outputs")
            (file,) = (tmp_path / "outputs").glob(f"turnwise_{name}--*/traces.jsonl")
            rows[name] = [json.loads(line) for line in file.read_text().splitlines()]
        os.kill(server.pid, signal.SIGINT)
    for episodes in rows.values():
        assert len(episodes) == 2 and all(episode["ok"] for episode in episodes)
        traces = [trace for episode in episodes for trace in episode["traces"]]
        assert all(math.isfinite(trace["rewards"]["reward"]["score"]) for trace in traces)
        assert all(set(trace["metrics"]) == {"success"} for trace in traces)


def evaluate(package: str, folder: Path, url: str, outputs: Path) -> None:
    main = "from verifiers.v1.cli.eval.main import main; main()"
    options = ["--model", "tiny", "--client.base-url", url, "--client.api-key-var", "EXPORT_KEY", "-n", "2"]
    source = Path(turnwise.__file__).parents[1]
    subprocess.run(
        [NEWEST, "-c", main, package, *options, "--no-push", "--no-rich", "-o", outputs],
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{folder}", "EXPORT_KEY": "k"},
        cwd=outputs.parent,
        check=True,
        capture_output=True,
        timeout=300,
    )
