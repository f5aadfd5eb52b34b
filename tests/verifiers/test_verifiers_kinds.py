"""The kinds of environments of the real verifiers: one turn, several turns, tools, tools with state, toolsets."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from turnwise.cli.main import main
from turnwise.core.trajectory import Trajectory
from turnwise.models.loading.tiny import tiny_tokenizer
from verifiers_for_tests import collect, opening, params_of, train_on

SINGLE = params_of("classic_kinds.py", args={"kind": "single"})
MULTI = params_of("classic_kinds.py", args={"kind": "multi"})
STATEFUL = params_of("classic_kinds.py", args={"kind": "stateful"})
TOOLS = params_of("capitals.py")
SHARED = params_of("stock.py", args={})
OWN = params_of("stock.py", args={"shared": False, "task": {"tools": {}}})


def call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def number_of(params: dict[str, Any]) -> int:
    """Return the number in the question of the first task."""
    (number,) = re.findall(r"The number is (\d+)", opening(params, "train", 0))
    return int(number)


def outcome(episode: Trajectory) -> tuple[list[float], bool]:
    return list(episode.turn_rewards), episode.status == "succeeded"


def test_single_turn_env_scores_one_reply_with_exact_tokens() -> None:
    assert outcome(collect(SINGLE, str(number_of(SINGLE)))) == ([1.0], True)
    assert outcome(collect(SINGLE, "I do not know.")) == ([0.0], False)


def test_multi_turn_env_answers_with_exact_tokens() -> None:
    number = number_of(MULTI)
    right = [str(number), str(number - 1), str(number - 2)]
    assert outcome(collect(MULTI, *right)) == ([0.0, 0.0, 1.0], True)
    *_, reward = outcome(collect(MULTI, right[0], "what?", right[2]))[0]
    assert reward == pytest.approx(2 / 3)


def test_tool_env_runs_calls_with_exact_tokens() -> None:
    country = re.findall(r"Capital of (\w+)", opening(TOOLS, "train", 0))[0]
    assert outcome(collect(TOOLS, call("look_up", country=country), "Paris? Rome."))[0] in ([0.0, 0.5], [0.0, 1.5])
    assert outcome(collect(TOOLS, call("look_up", country="Atlantis"), "It is lost.")) == ([0.0, 0.5], False)


def test_stateful_tool_env_adds_hidden_arguments_with_exact_tokens() -> None:
    number = number_of(STATEFUL)
    assert outcome(collect(STATEFUL, call("turn", number=number), "It is open.")) == ([0.0, 1.0], True)
    assert outcome(collect(STATEFUL, call("turn", number=number + 1), "Is it open?")) == ([0.0, 0.0], False)


@pytest.mark.parametrize("params", [SHARED, OWN], ids=["shared", "own"])
def test_toolset_answers_calls_with_exact_tokens(params: dict[str, Any]) -> None:
    episode = collect(params, call("stock_toolset_count", article="apples"), "3")
    assert outcome(episode) == ([0.0, 1.0], True)
    assert "3" in tiny_tokenizer().decode(list(episode.turns[1].context_ids))


@pytest.mark.parametrize("params", [MULTI, STATEFUL, SHARED], ids=["multi", "stateful", "toolset"])
def test_training_on_each_kind(params: dict[str, Any], tmp_path: Path) -> None:
    args = json.dumps(params["args"])
    played = train_on({**params, "args": args}, tmp_path, **{"env.params.style": "answer"})
    assert len(played) >= 8 and all(episode["status"] != "dropped" for episode in played)


def test_eval_and_play_take_environments_of_verifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    target = f"verifiers:{SINGLE['package']}"
    settings = ["--env.params.python", SINGLE["python"]]
    evaluated = ["eval", "tiny", target, *settings, "--eval.episodes", "2", "--rollout.max_new_tokens", "8"]
    assert main(evaluated) == 0
    assert "2 tasks of the test split" in capsys.readouterr().out
    replies = iter([str(number_of(SINGLE))])
    monkeypatch.setattr("builtins.input", lambda prompt: next(replies))
    assert main(["play", target, *settings]) == 0
    shown = capsys.readouterr().out
    assert "Type a whole reply of the agent" in shown and "Won. Total reward 1." in shown


def test_envs_check_finds_an_environment_of_verifiers_sound(capsys: pytest.CaptureFixture[str]) -> None:
    target = [
        "envs",
        "check",
        f"verifiers:{SINGLE['package']}",
        "--env.params.python",
        SINGLE["python"],
        "--tasks",
        "2",
    ]
    assert main(target) == 0
    assert "4 agents, at most 0 per turn" in capsys.readouterr().out
