"""Runs of an environment with several roles, through the whole of `turnwise train`."""

import json
from pathlib import Path
from typing import Any

import pytest

import turnwise as tw
from pages_for_tests import ROOT
from turnwise.cli.main import main
from turnwise.core.errors import UserError
from turnwise.envs.registry import load_spec

FILE = f"{ROOT / 'examples' / 'telephone' / 'telephone.py'}:Telephone"
SMALL: dict[str, Any] = {
    "model__warmup_steps": 2,
    "rollout__groups": 6,
    "rollout__group_size": 2,
    "train__mini_batch": 4,
    "eval__episodes": 6,
    "steps": 2,
}


def records_of(run: tw.Run) -> list[dict[str, Any]]:
    return list(map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines()))


def rows_of(run: tw.Run) -> list[dict[str, Any]]:
    return [row for row in records_of(run) if "rollout/success" in row]


def test_all_roles_are_trained_and_measured(tmp_path: Path) -> None:
    run = tw.train(FILE, record__folder=str(tmp_path), name="all", **SMALL | {"model__warmup_steps": 40})
    for row in rows_of(run):
        assert {name.partition(":")[2] for name in row if "episodes/Telephone" in name} == {"first", "second", "third"}
        assert row["rollout/dropped"] == 0  # though agents that know nothing often leave the next one without a turn


def test_frozen_and_scripted_players_are_not_trained(tmp_path: Path) -> None:
    first = tw.train(FILE, record__folder=str(tmp_path), name="first", **SMALL | {"steps": 1})
    players = {"first": "script", "third": str(first.path)}
    run = tw.train(FILE, record__folder=str(tmp_path), name="second", env__params={"players": players}, **SMALL)
    rows = rows_of(run)
    assert rows and not any("Telephone:" in name for row in rows for name in row)  # one role: nothing to compare


def test_one_role_is_evaluated_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tw.train(FILE, record__folder=str(tmp_path), name="run", **SMALL | {"steps": 1})
    assert main(["eval", str(run.path), "--episodes", "4"]) == 2
    told = capsys.readouterr()
    assert "trains 3 roles. Evaluate one at a time, such as --env.params.role first." in told.err
    assert "--env.params.role first --episodes 512" in " ".join(told.out.split())
    assert main(["eval", str(run.path), "--episodes", "4", "--env.params.role", "second"]) == 0
    assert "Telephone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rollout__groups": 7}, "Telephone trains 3 roles, one group each, and rollout.groups is 7"),
        ({"rollout__in_flight": 2}, "Telephone runs 3 roles at once. Raise rollout.in_flight to 3 or more"),
        ({"env__mix": {"bandit": 1.0}}, "has several roles, whose episodes run together, and env.mix adds others"),
        ({"cluster__engines": 1}, "has several roles, whose episodes run in one process, and cluster.engines"),
        ({"rollout__retry_unsolved": 1, "rollout__group_size": 4}, "Telephone trains several roles at once"),
        ({"algo__advantage": "remax"}, "Telephone trains several roles at once"),
        ({"env__params": {"players": {"fourth": "script"}}}, "env.params.players names the role 'fourth'"),
        ({"env__params": {"players": {"first": "no/such"}}}, "no/such"),
    ],
)
def test_settings_that_roles_do_not_allow(settings: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=problem):
        tw.train(FILE, record__folder=str(tmp_path), name="run", **SMALL | settings)


SCRIPTED = {"player_0": "script", "player_1": "script"}


@pytest.mark.parametrize(
    ("players", "trained", "settings"),
    [
        (SCRIPTED, set[str](), {"rollout__groups": 2}),  # one role has no metrics of its own
        pytest.param(
            {}, {"player_0", "player_1", "player_2"}, {"model__warmup_steps": 20}, marks=pytest.mark.soak
        ),  # an agent that knows no legal move leaves the others without a turn, and warm-up takes a minute
    ],
)
def test_players_of_a_textarena_game_for_three_are_trained(
    players: dict[str, str], trained: set[str], settings: dict[str, Any], tmp_path: Path, optional_part: Any
) -> None:
    spec = load_spec("text_arena_players")
    if spec.install_command:
        optional_part(f"a package is missing: {spec.install_command}")
    given = SMALL | {"eval__episodes": 3, "rollout__max_new_tokens": 16, "env__params": {"players": players}} | settings
    run = tw.train("text_arena_players", record__folder=str(tmp_path), name="run", **given)
    rows = rows_of(run)
    assert all(row["rollout/episodes"] >= 4 and row["rollout/dropped"] == 0 for row in rows) and len(rows) == 2
    assert {name.partition(":")[2] for row in rows for name in row if "episodes/" in name} == trained
    assert [row["step"] for row in records_of(run) if "train/policy_loss" in row][-1:] == [2]
