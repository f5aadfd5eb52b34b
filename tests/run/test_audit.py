"""`turnwise audit` accounts for every episode of real runs, and notices planted faults."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs_for_tests import quiet, rewind, small
from turnwise.cli.main import main
from turnwise.core.errors import UserError
from turnwise.run.audit import audit
from turnwise.run.train import train

ROW = dict[str, Any]
FAULTY = '''
import turnwise as tw


class Faulty(tw.TextEnv):
    """Fails in a tenth of its turns, so that long episodes fail more often."""

    max_turns = 3
    action_names = ("left", "right")

    def reset(self, rng):
        self.secret = rng.choice(self.action_names)
        return "Where is it?"

    def state_key(self):
        if self.rng.random() < 0.1:
            raise RuntimeError("the line is down")

    def step(self, action):
        return tw.won("Here.") if action == self.secret else tw.goes_on("Not there.")
'''
PLAIN: dict[str, Any] = {
    "algo__advantage": "grpo",
    "algo__kl_coef": 0.0,
    "eval__every": 0,
    "model__warmup_steps": 2,
    "rollout__groups": 4,
}


def trained(folder: Path, **settings: Any) -> Path:
    train(small(folder, **PLAIN | settings), console=quiet())
    return folder / "run"


def problems_of(run: Path) -> dict[str, int]:
    return {finding.check: len(finding.problems) for finding in audit(run).findings if finding.problems}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("healthy"), env__kind="frozen_lake")


def faulty(folder: Path) -> str:
    (folder / "faulty.py").write_text(FAULTY)
    return f"{folder / 'faulty.py'}:Faulty"


@pytest.mark.parametrize(
    "settings",
    [
        {"env__kind": "frozen_lake", "algo__filter": "quarter"},
        {"env__kind": "frozen_lake", "rollout__retry_unsolved": 1},
        {"env__kind": "frozen_lake", "rollout__max_staleness": 1, "train__steps": 5},
        {"env__kind": "tic_tac_toe", "selfplay__opponent": "self"},
        {"env__kind": "bandit", "curriculum__pool": 8},
    ],
    ids=lambda settings: next(iter(dict(list(settings.items())[1:]))),
)
def test_runs_account_for_every_episode(settings: dict[str, Any], tmp_path: Path) -> None:
    run = trained(tmp_path, **settings)
    result = audit(run)
    assert result.steps == settings.get("train__steps", 3) and result.episodes > 0
    assert problems_of(run) == {}


@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_failed_episodes_are_counted_as_dropped(staleness: int, tmp_path: Path) -> None:
    run = trained(
        tmp_path,
        env__kind=faulty(tmp_path),
        rollout__max_staleness=staleness,
        model__warmup_steps=0,
        rollout__attempts=2,
        rollout__group_size=8,
        train__steps=6,
    )
    result = audit(run)
    assert problems_of(run) == {}
    assert result.dropped > 0 and result.episodes + result.dropped == 6 * 4 * 8


def test_resumed_run_is_accounted_for(healthy: Path, tmp_path: Path) -> None:
    cut = rewind(healthy, tmp_path, step=2)
    train(small(tmp_path, **PLAIN, env__kind="frozen_lake"), resume=True, console=quiet())
    assert problems_of(cut) == {}


def rows_in(file: Path) -> list[ROW]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_rows(file: Path, rows: list[ROW]) -> None:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def change_episodes(run: Path, step: int, change: Callable[[list[ROW]], list[ROW]]) -> None:
    """Change the episodes of a step, and write the index that fits them."""
    index, file = run / "trajectories/index.jsonl", run / f"trajectories/step_{step:06d}.jsonl"
    rows = change(rows_in(file))
    write_rows(file, rows)
    entries, offset = [entry for entry in rows_in(index) if entry["step"] != step or "evaluation" in entry], 0
    for row in rows:
        length = len(json.dumps(row))
        entries.append({name: row[name] for name in ("step", "group", "member")} | {"offset": offset, "length": length})
        offset += length + 1
    write_rows(index, entries)


def lose_episode(run: Path) -> None:
    change_episodes(run, 2, lambda rows: rows[1:])


def repeat_member(run: Path) -> None:
    change_episodes(run, 2, lambda rows: [rows[1], *rows[1:]])


def change_task(run: Path) -> None:
    def other(rows: list[ROW]) -> list[ROW]:
        return [row | {"task": row["task"] | {"seed": 7}} if row["group"] == 0 else row for row in rows]

    change_episodes(run, 2, other)


def repeat_step(run: Path) -> None:
    again = [row | {"step": 3} for row in rows_in(run / "trajectories/step_000002.jsonl")]
    change_episodes(run, 3, lambda rows: again)


def forget_group(run: Path) -> None:
    def untrained(rows: list[ROW]) -> list[ROW]:
        for row in rows:
            for turn in row["turns"] if row["group"] == 1 else ():
                turn["learner_logprobs"] = None
        return rows

    change_episodes(run, 2, untrained)


def use_old_weights(run: Path) -> None:
    def older(rows: list[ROW]) -> list[ROW]:
        for row in rows:
            row["turns"][0]["policy_version"] = 0
        return rows

    change_episodes(run, 3, older)


def change_metrics(run: Path, change: Callable[[ROW], ROW | None]) -> None:
    rows = [changed for row in rows_in(run / "metrics.jsonl") if (changed := change(row)) is not None]
    write_rows(run / "metrics.jsonl", rows)


def lose_step(run: Path) -> None:
    change_metrics(run, lambda row: None if row["step"] == 2 and "rollout/groups" in row else row)


def lose_count(run: Path) -> None:
    change_metrics(run, lambda row: row | {"rollout/dropped": 3.0} if row["step"] == 2 else row)


def filter_more(run: Path) -> None:
    change_metrics(run, lambda row: row | {"rollout/kept_groups": 2.0} if row["step"] == 2 else row)


@pytest.mark.parametrize(
    ("damage", "checks"),
    [
        (lose_episode, {"steps"}),
        (repeat_member, {"members"}),
        (change_task, {"tasks"}),
        (repeat_step, {"tasks", "once", "age"}),
        (forget_group, {"trained"}),
        (filter_more, {"trained"}),
        (use_old_weights, {"age"}),
        (lose_step, {"steps"}),
        (lose_count, {"asked"}),
    ],
)
def test_planted_fault_is_noticed(
    damage: Callable[[Path], None], checks: set[str], healthy: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(healthy, copy)
    damage(copy)
    assert set(problems_of(copy)) == checks


def test_command_prints_a_line_per_check(healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(healthy)]) == 0
    told = capsys.readouterr().out
    assert "3 steps, 48 episodes, 0 dropped" in told and told.count(" ok ") == 7
    copy = tmp_path / "run"
    shutil.copytree(healthy, copy)
    lose_episode(copy)
    assert main(["audit", str(copy)]) == 2
    told, error = capsys.readouterr()
    assert "steps    wrong  step 2: 15 episodes are recorded, of 16" in told
    assert "1 of 7 checks failed" in error


def test_runs_without_episodes_are_refused(tmp_path: Path) -> None:
    run = trained(tmp_path, record__trajectories=0, train__steps=1)
    with pytest.raises(UserError, match=r"recorded no episodes: record.trajectories is 0"):
        audit(run)
