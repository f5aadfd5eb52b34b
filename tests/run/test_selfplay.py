"""Runs against oneself and against one's own past: they learn from both sides, resume, and climb a ladder."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from episodes_for_tests import trajectory_of, turn_of
from runs_for_tests import episodes, learnt, metrics, quiet, rewind, small
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.engine.native.engine import NativeEngine
from turnwise.evaluation.statistics import MatchScore, performance_rating
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.models.loading.save import write_model
from turnwise.models.loading.tiny import tiny_model, tiny_tokenizer
from turnwise.record.run_folder import RunFolder
from turnwise.run import train as run_train
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.train import train
from turnwise.run.validate import CheckedRun, check_games, check_settings
from turnwise.training.selfplay import FrozenPolicy, Opponents, Snapshots, points_of

GAME = {
    "env__kind": "tic_tac_toe",
    "rollout__max_tokens": 512,
    "algo__kl_coef": 0.0,
    "eval__every": 0,
    "eval__episodes": 2,
    "rollout__group_size": 2,
    "train__steps": 2,
    "rollout__timeout_s": 60.0,
}


def check(config: Config, override_keys: Iterable[str] = ()) -> None:
    check_settings(config, override_keys)
    run = CheckedRun(config=config, environments=build_environment_mix(config.env, config.agent))
    check_games(config.selfplay, run)


def config(folder: Path, opponent: str, **settings: Any) -> Config:
    quick = {} if opponent == "none" else {"selfplay__opponent__ladder_games": 0}
    given = {**GAME, "selfplay__opponent": opponent, **quick, **settings}
    return small(folder, **given)


def play(folder: Path, opponent: str, resume: bool = False, **settings: Any) -> Path:
    train(config(folder, opponent, **settings), console=quiet(), resume=resume)
    return folder / "run"


def rows(run: Path) -> list[dict[str, Any]]:
    folder = RunFolder.open(run)
    return [folder.read_trajectory(entry) for entry in folder.read_index()]


def same(ours: Path, theirs: Path) -> bool:
    one, other = learnt(ours, step=2), learnt(theirs, step=2)
    weights = all(torch.equal(one[name], other[name]) for name in one)
    return weights and episodes(ours) == episodes(theirs) and metrics(ours) == metrics(theirs)


def test_selfplay_trains_both_players_and_resumes_identically(tmp_path: Path) -> None:
    whole = play(tmp_path / "whole", "self", rollout__in_flight=4)
    played = [(row["step"], row["task"]["seed"], row["member"], row["task"]["params"]["begins"]) for row in rows(whole)]
    pairs = {each[:3] for each in played}
    assert len(played) == 2 * len(pairs) == 8 and {each[3] for each in played} == {"agent", "opponent"}
    assert all(row["rollout/truncated_time"] == 0 for row in metrics(whole) if "rollout/success" in row)
    for row in rows(whole):
        for turn in row["turns"]:
            assert len(turn["advantages"]) == len(turn["action_ids"])
    rewind(whole, tmp_path / "cut", step=1)
    assert same(whole, play(tmp_path / "cut", "self", resume=True, rollout__in_flight=4))


LADDER = {
    "selfplay__opponent__snapshot_every": 1,
    "selfplay__opponent__snapshots": 2,
    "selfplay__opponent__ladder_games": 2,
}


def test_past_opponents_train_one_player_and_resume_identically(tmp_path: Path) -> None:
    whole = play(tmp_path / "whole", "past", **LADDER)
    found = [(row["step"], row["task"]["seed"], row["task"]["params"]["begins"]) for row in rows(whole)]
    assert len(found) == 8 and len(set(found)) == 4
    assert [begins for *_, begins in sorted(set(found), key=found.index)] == ["agent", "opponent"] * 2
    rewind(whole, tmp_path / "cut", step=1)
    assert same(whole, play(tmp_path / "cut", "past", resume=True, **LADDER))

    assert_ladder(whole)
    past = sorted(path.name for path in (whole / "past").iterdir())
    assert past == ["step_000000", "step_000001", "step_000002"]
    now = load_file(whole / "checkpoints/step_000002/model.safetensors")
    then = {name: load_file(whole / "past" / name / "model.safetensors") for name in past}
    assert all(torch.equal(now[name], then["step_000002"][name]) for name in now)
    assert not all(torch.equal(now[name], then["step_000001"][name]) for name in now)


class Killed(BaseException):
    """Not caught anywhere, like SIGKILL."""


def test_snapshots_follow_from_checkpoints_when_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the last checkpoint, a run prunes its snapshots again when it is resumed."""

    def kill(*_: object) -> None:
        raise Killed

    few = {"selfplay__opponent__snapshot_every": 1, "selfplay__opponent__snapshots": 1}
    few |= {"rollout__groups": 1, "train__mini_batch": 2, "rollout__max_new_tokens": 4, "eval__episodes": 1}
    few |= {"checkpoint__keep_last": 1}
    past = tmp_path / "run/past"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(run_train, "draw_learning_curve", kill)
        play(tmp_path, "past", **few)
    assert sorted(path.name for path in past.iterdir()) == ["step_000001", "step_000002"]
    play(tmp_path, "past", resume=True, **few)
    assert sorted(path.name for path in past.iterdir()) == ["step_000001", "step_000002"]


def test_random_moves_come_before_the_games_of_training(tmp_path: Path) -> None:
    given = {"rollout__groups": 8, "train__steps": 1, "selfplay__random_moves": 6}
    starts: dict[tuple[int, str], set[str]] = {}
    for row in rows(play(tmp_path, "self", **given)):
        key = (row["task"]["seed"], row["task"]["params"]["begins"])
        starts.setdefault(key, set()).add(row["turns"][0]["info"]["state"])
    first_to_see = [min(found, key=stones) for found in starts.values()]
    assert len(starts) == 8 and max(map(stones, first_to_see)) > 2, "more than the other side's first move"
    with pytest.raises(UserError, match=r"selfplay\.random_moves has no effect with selfplay\.opponent none"):
        check(config(Path("x"), "none"), ["selfplay.random_moves"])


def stones(board: str) -> int:
    return sum(cell in "XO" for cell in board.split())


def assert_ladder(run: Path) -> None:
    """Each rung is rated by its games against those before it, as the metrics tell them."""
    rungs = {row["step"]: row for row in metrics(run) if "ladder/elo" in row}
    assert list(rungs) == [1, 2]
    opponents = {1: [0], 2: [0, 1]}
    ratings = {0: 0.0}
    for step, row in rungs.items():
        shares = {rung: row[f"ladder/score/step_{rung:06d}"] for rung in opponents[step]}
        assert row["ladder/games"] == 2 * len(shares) == 2 * sum(name.startswith("ladder/score/") for name in row)
        assert row["ladder/score"] == pytest.approx(sum(shares.values()) / len(shares))
        scores = [MatchScore(opponent=ratings[rung], points=2 * share, games=2) for rung, share in shares.items()]
        assert row["ladder/elo"] == pytest.approx(performance_rating(scores))
        ratings[step] = row["ladder/elo"]


def test_snapshots_follow_from_the_step_and_are_bounded(tmp_path: Path) -> None:
    past = Snapshots(tmp_path / "past", every=10, keep=3, tokenizer=tiny_tokenizer())
    assert past.at(0) == [0] and past.at(9) == [0] and past.at(25) == [0, 10, 20] and past.at(40) == [20, 30, 40]
    assert past.before(0) == [] and past.before(10) == [0] and past.before(40) == [10, 20, 30]
    for step in range(0, 60, 10):
        past.path(step).mkdir(parents=True)
    past.drop_unneeded(0)
    assert len(list(past.folder.iterdir())) == 6
    past.drop_unneeded(45)
    assert sorted(path.name for path in past.folder.iterdir())[0] == "step_000020"
    past.drop_unneeded(50)
    assert past.path(20).exists(), "the ladder of step 50 may have to be played again"
    past.drop_after(30)
    assert sorted(path.name for path in past.folder.iterdir()) == ["step_000020", "step_000030"]
    past.save(saving(tiny_model(0)), 40)
    past.save(saving(tiny_model(1)), 40)
    kept, first = load_file(past.path(40) / "model.safetensors"), tiny_model(0).state_dict()
    assert all(torch.equal(kept[name], first[name]) for name in kept)


def saving(model: Any) -> Any:
    """A learner that can only save its model."""
    return SimpleNamespace(save_model=lambda folder, tokenizer: write_model(model, tokenizer, folder))


class Seen:
    """Instead of a frozen player: what it would have been."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def load(self, folder: Path) -> None:
        self.names.append(folder.name)


def opponents_of(tmp_path: Path, frozen: Any, trained_against: bool) -> Opponents:
    past = Snapshots(tmp_path, every=10, keep=3, tokenizer=None)
    rest = dict.fromkeys(("ladder", "learner", "checkpoints", "folder", "progress"))
    return Opponents(snapshots=past, frozen=frozen, trained_against=trained_against, run_seed=1, **rest)  # type: ignore[arg-type]


def test_opponent_is_drawn_from_recent_snapshots_by_the_step_alone(tmp_path: Path) -> None:
    seen, again, never = Seen(), Seen(), Seen()
    for step in range(30, 40):
        asyncio.run(opponents_of(tmp_path, seen, True).before(step))
        asyncio.run(opponents_of(tmp_path, never, False).before(step))
    for step in range(30, 40):
        asyncio.run(opponents_of(tmp_path, again, True).before(step))
    assert seen.names == again.names and not never.names
    assert set(seen.names) == {"step_000010", "step_000020", "step_000030"}


def test_frozen_player_loads_a_snapshot_in_place(tmp_path: Path) -> None:
    def read(name: str) -> LoadedModel:
        return load_model(name, attn_implementation=ATTENTION)

    past = Snapshots(tmp_path, every=10, keep=3, tokenizer=tiny_tokenizer())
    for step in (0, 10):
        past.save(saving(tiny_model(step)), step)
    model = tiny_model(7)
    model.set_attn_implementation(ATTENTION)
    frozen = FrozenPolicy(NativeEngine(model, slots=1, stop_ids=(), decode=str), read)
    places = [parameter.data_ptr() for parameter in model.parameters()]
    for step in (10, 0):
        asyncio.run(frozen.load(past.path(step)))
        wanted = dict(tiny_model(step).named_parameters())
        assert all(torch.equal(value, wanted[name]) for name, value in model.named_parameters())
    assert places == [parameter.data_ptr() for parameter in model.parameters()]


@pytest.mark.parametrize(("last", "points"), [("win", 1.0), ("draw", 0.5), ("loss", 0.0), (None, 0.0)])
def test_points_of_a_game(last: str | None, points: float) -> None:
    turns = [turn_of([1], [2]), turn_of([1], [2], info={"result": last} if last else {})]
    assert points_of(trajectory_of(turns)) == points


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"env__mix": {"frozen_lake": 1.0}}, r"env\.mix adds others"),
        ({"curriculum__pool": 64}, r"curriculum\.pool ranks tasks"),
        ({"algo__advantage": "remax"}, "adds a greedy episode per group"),
        ({"env__params": {"begins": "agent"}}, r"env\.params\.begins fixes the player"),
        ({"env__params": {"max_actions_per_turn": 2}}, "after each action. Set it to 1"),
        ({"rollout__groups": 3}, r"rollout\.groups 3 is odd"),
        ({"rollout__in_flight": 1}, r"Raise rollout\.in_flight to 2"),
    ],
)
def test_selfplay_rejects_conflicting_settings_in_one_line(settings: dict[str, Any], problem: str) -> None:
    check(config(Path("x"), "self"))
    with pytest.raises(UserError, match=problem):
        check(config(Path("x"), "self", **settings))
    check(config(Path("x"), "none", **settings))


def test_selfplay_rejects_other_environments_and_unused_settings() -> None:
    for opponent in ("self", "past"):
        with pytest.raises(UserError, match="needs a two-player game, and bandit is not one"):
            train(config(Path("x"), opponent, env__kind="bandit"), console=quiet())
    check(config(Path("x"), "past", rollout__groups=3, rollout__in_flight=1), ["selfplay.opponent.snapshots"])
    with pytest.raises(UserError, match=r"ladder_games has no effect with selfplay\.opponent none.*choose self, past"):
        config(Path("x"), "none", selfplay__opponent__ladder_games=1)
