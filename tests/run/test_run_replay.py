"""Episodes of real runs are played again to the same bits, and branched."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnwise as tw
from pages_for_tests import ROOT
from runs_for_tests import quiet, small
from turnwise.cli.main import main
from turnwise.core.errors import UserError
from turnwise.run.api import Run
from turnwise.run.train import train

LAKE: dict[str, Any] = {"env__kind": "frozen_lake", "env__params__slippery": True}
KINDS: dict[str, dict[str, Any]] = {
    "text": LAKE,
    "window": LAKE | {"context": "window", "context__turns": 1},
    "turn": LAKE | {"context": "turn"},
    "summary": LAKE | {"context": "summary", "context__every": 2, "rollout__max_tokens": 512},
    "images": {
        **LAKE,
        "env__params__observation": "image",
        "env__params__cell_pixels": 8,
        "env__params__max_turns": 3,
        "model__name": "tiny_vlm",
        "rollout__max_tokens": 1024,
    },
    "tools": {"env__kind": "lookup"},
    "roles": {"env__kind": f"{ROOT / 'examples' / 'telephone' / 'telephone.py'}:Telephone", "rollout__groups": 3},
    "self-play": {"env__kind": "tic_tac_toe", "selfplay__opponent": "self"},
    "ahead": LAKE | {"rollout__max_staleness": 1},
    "rewards": LAKE | {"reward__functions": f"{ROOT / 'tests/run/test_run_replay.py'}:length_reward"},
}


def length_reward(trajectory: tw.Trajectory) -> float:
    return -0.01 * trajectory.num_sampled


def trained(folder: Path, **settings: Any) -> Run:
    further = {
        "checkpoint__keep_last": 9,
        "eval__every": 0,
        "algo__advantage": "grpo",
        "algo__kl_coef": 0.0,
        "model__warmup_steps": 2,
    }
    train(small(folder, **further | settings), console=quiet())
    return Run(folder / "run")


def with_row(run: Run, folder: Path, step: int, number: int, change: Callable[[dict[str, Any]], None]) -> Run:
    """Return a copy of the run in which one recorded episode of a step is changed."""
    copy = folder / f"copy{len(list(folder.iterdir()))}"
    shutil.copytree(run.path, copy)
    file, index = copy / f"trajectories/step_{step:06d}.jsonl", copy / "trajectories/index.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    change(rows[number])
    lines = [json.dumps(row) for row in rows]
    file.write_text("".join(f"{line}\n" for line in lines))
    entries = [json.loads(line) for line in index.read_text().splitlines()]
    changed = [entry for entry in entries if entry["step"] == step and "evaluation" not in entry]
    offset = 0
    for entry, line in zip(changed, lines, strict=True):
        entry |= {"offset": offset, "length": len(line)}
        offset += len(line) + 1
    index.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    return Run(copy)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("lake"), **LAKE)


@pytest.mark.parametrize("kind", KINDS)
def test_every_recorded_episode_is_played_again_as_it_was(kind: str, tmp_path: Path) -> None:
    run = trained(tmp_path, **KINDS[kind])
    result = run.replay()
    assert len(result.replays) == len(run.trajectories()) > 0
    assert [(replay.recorded.describe(), replay.difference) for replay in result.differing] == []


def test_weights_that_are_kept_sample_the_same_tokens_again(lake: Run) -> None:
    for step, weights in ((1, "start"), (2, "step_000001"), (3, "step_000002")):
        result = lake.replay(step=step)
        assert result.model == weights and len(result.resampled) == 8
        assert result.equal
    assert lake.replay(evaluation="after").model == "step_000003"
    other = lake.replay(step=3, model="step_000001")
    assert other.equal and not other.resampled  # other weights are not expected to repeat the tokens


def other_reward(row: dict[str, Any]) -> None:
    row["turns"][1]["reward"] += 0.5


def other_observation(row: dict[str, Any]) -> None:
    row["turns"][1]["context_ids"][3] += 1


def other_start(row: dict[str, Any]) -> None:
    row["turns"][1]["extends"] = False


def other_status(row: dict[str, Any]) -> None:
    row["status"] = "succeeded" if row["status"] != "succeeded" else "failed"


def other_total(row: dict[str, Any]) -> None:
    row["turns"][0]["turn_reward"] += 1.0


def fewer_turns(row: dict[str, Any]) -> None:
    del row["turns"][1:]


def more_turns(row: dict[str, Any]) -> None:
    row["turns"].append(row["turns"][-1])


@pytest.mark.parametrize(
    ("change", "turn", "name"),
    [
        (other_reward, 1, "reward"),
        (other_observation, 1, "context_ids"),
        (other_start, 1, "context_ids"),
        (other_status, None, "status"),
        (other_total, None, "turn_rewards"),
        (fewer_turns, 1, "context_ids"),
    ],
)
def test_planted_difference_is_named(
    lake: Run, tmp_path: Path, change: Callable[[dict[str, Any]], None], turn: int | None, name: str
) -> None:
    number = next(number for number, row in enumerate(lake.trajectories(3)) if len(row["turns"]) > 2)
    run = with_row(lake, tmp_path, 3, number, change)
    (replay,) = run.replay(step=3, model="start").differing
    assert replay.difference is not None
    assert (replay.difference.turn, replay.difference.name) == (turn, name)


def test_turns_that_cannot_have_been_played_are_named(lake: Run, tmp_path: Path) -> None:
    (replay,) = with_row(lake, tmp_path, 3, 0, more_turns).replay(step=3, model="start").differing
    assert replay.difference is not None and replay.difference.name == "turns"


def test_branches_begin_with_the_recorded_turns(lake: Run) -> None:
    row = next(row for row in lake.trajectories(3) if len(row["turns"]) > 2)
    place = {"step": 3, "group": row["group"], "member": row["member"]}
    result = lake.replay(**place, all_turns=True, samples=12)
    assert [branches.turn for branches in result.branches] == list(range(len(row["turns"])))
    for branches in result.branches:
        assert len(branches.episodes) == 12
        for episode in branches.episodes:
            kept = [list(turn.action_ids) for turn in episode.turns[: branches.turn]]
            assert kept == [turn["action_ids"] for turn in row["turns"][: branches.turn]]
            assert [turn.reward for turn in episode.turns[: branches.turn]] == [
                turn["reward"] for turn in row["turns"][: branches.turn]
            ]
    first = {tuple(turn.action_ids for turn in episode.turns) for episode in result.branches[0].episodes}
    assert len(first) > 1  # each branch samples with random numbers of its own
    again = lake.replay(**place, from_turn=1, samples=12).branches[0]
    assert [episode.turns for episode in again.episodes] == [episode.turns for episode in result.branches[0].episodes]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": 9}, "has no episode of training, step 9. It recorded steps 1 to 3."),
        ({"evaluation": "validation"}, "It recorded none of that kind."),
        ({"step": 3, "from_turn": 1}, "Branches start from one episode, not from 8."),
        ({"step": 3, "group": 0, "member": 0, "from_turn": 99}, "The episode has no turn 99: choose 1 to"),
        ({"step": 3, "group": 0, "member": 0, "from_turn": 0}, "The episode has no turn 0: choose 1 to"),
        ({"from_turn": 1, "all_turns": True}, "both select the turns"),
        ({"step": 3, "model": "step_000009"}, "step_000009"),
    ],
)
def test_selection_that_is_not_recorded(lake: Run, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        lake.replay(**arguments)


def test_runs_that_cannot_be_played_again(tmp_path: Path) -> None:
    past = trained(tmp_path, env__kind="tic_tac_toe", selfplay__opponent="past", train__steps=1)
    with pytest.raises(UserError, match="played against its snapshots, whose moves are not recorded"):
        past.replay()
    assert past.replay(evaluation="after").equal


def test_command_says_at_which_turn_an_episode_was_lost(
    lake: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(lake.path)]) == 0
    assert "24 of 24 episodes equal: environment, contexts and rewards" in capsys.readouterr().out
    assert (
        main(
            ["replay", str(lake.path), "--step", "2", "--group", "0", "--member", "1", "--all-turns", "--samples", "4"]
        )
        == 0
    )
    told = capsys.readouterr().out
    assert "equal: tokens, sampled again by step_000001" in told
    assert "success from here" in told and "4 branches a turn, sampled by step_000001" in told
    broken = with_row(lake, tmp_path, 2, 0, other_status)
    assert main(["replay", str(broken.path), "--step", "2", "--group", "0", "--member", "0"]) == 2
    told, error = capsys.readouterr()
    assert "1 of 1 episodes differ from their records" in error
    assert "different: environment, contexts and rewards" in told
    assert "step 2, group 0, member 0: the episode: status was" in told
