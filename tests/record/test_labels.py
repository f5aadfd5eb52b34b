"""Labels of episodes: the last one counts, and it belongs to the episode that was labelled."""

import json
from pathlib import Path
from typing import Any

import pytest

from turnwise.core.errors import UserError
from turnwise.core.trajectory import TokenName
from turnwise.record.labelled_episodes import read_labelled
from turnwise.record.labels import (
    LABELS_FILE,
    EpisodeKey,
    EpisodeLabel,
    Label,
    append_label,
    count_labels,
    digest_episode,
    labelled_run,
    read_labels,
)
from turnwise.record.run_folder import RunFolder

FIRST, SECOND = (EpisodeKey(evaluation=None, step=1, group=0, member=member) for member in (0, 1))


def write_run(path: Path) -> list[bytes]:
    """Write a run of two episodes, and return their lines."""
    turn = {"action_ids": [1], "context_ids": [2], "reward": 0.25, "turn_reward": 0.25}
    rows: list[dict[str, Any]] = [
        {
            "step": 1,
            "group": 0,
            "member": member,
            "task": {"env": "bandit", "seed": 7},
            "status": "truncated_turns",
            "reward": 0.5,
            "rewards": {"env": 0.5},
            "tokens": 2,
            "turns": [turn, turn],
        }
        for member in (0, 1)
    ]
    with RunFolder.create(path, "[env]\nkind = 'bandit'\n") as folder:
        folder.write_trajectories(1, rows, lambda token: TokenName(id=token, text=str(token), special=False))
    return (path / "trajectories/step_000001.jsonl").read_bytes().splitlines()


def label(run: Path, key: EpisodeKey, line: bytes, name: Label) -> None:
    append_label(run, EpisodeLabel(key=key, label=name, digest=digest_episode(line)))


def test_last_label_counts_and_is_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    one, other = write_run(run)
    assert read_labels(run) == {}
    label(run, FIRST, one, Label.GOOD)
    label(run, SECOND, other, Label.GOOD)
    label(run, FIRST, one, Label.BAD)
    assert {key: each.label for key, each in read_labels(run).items()} == {SECOND: "good", FIRST: "bad"}
    assert count_labels(run) == {"good": 1, "bad": 1}
    label(run, FIRST, one, Label.NONE)
    assert list(read_labels(run)) == [SECOND]


def test_label_after_a_partial_line_is_whole(tmp_path: Path) -> None:
    run = tmp_path / "run"
    one, _ = write_run(run)
    (run / LABELS_FILE).write_bytes(b'{"evaluation": nu')
    label(run, FIRST, one, Label.GOOD)
    assert list(read_labels(run)) == [FIRST]


def test_label_is_the_only_reward_of_its_episode(tmp_path: Path) -> None:
    run = tmp_path / "run"
    one, other = write_run(run)
    label(run, FIRST, one, Label.GOOD)
    label(run, SECOND, other, Label.BAD)
    good, bad = (row for _, row in read_labelled(run, Label.GOOD, Label.BAD))
    assert (good["status"], good["reward"], good["rewards"]) == ("succeeded", 1.0, {"label": 1.0})
    assert [turn["turn_reward"] for turn in good["turns"]] == [0.0, 1.0]
    assert (bad["status"], bad["reward"]) == ("failed", -1.0)
    assert [turn["reward"] for turn in bad["turns"]] == [0.0, -1.0]
    assert [row["member"] for _, row in read_labelled(run, Label.GOOD)] == [0]


def test_label_of_a_replaced_episode_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    one, _ = write_run(run)
    label(run, FIRST, one, Label.GOOD)
    file = run / "trajectories/step_000001.jsonl"
    file.write_bytes(file.read_bytes().replace(b"0.25", b"0.75", 1))
    with pytest.raises(UserError, match="step 1, group 0, member 0 is no longer the episode that was labelled"):
        list(read_labelled(run, Label.GOOD))
    file.unlink()
    with pytest.raises(UserError, match="no longer"):
        list(read_labelled(run, Label.GOOD))


def test_damaged_label_names_its_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run)
    (run / LABELS_FILE).write_text(json.dumps({"step": 1, "group": 0, "member": 0, "label": "fine"}) + "\n")
    with pytest.raises(UserError, match=r"labels.jsonl line 1 is not a label"):
        read_labels(run)


def test_file_of_labels_is_recognised_by_its_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run)
    assert labelled_run(run / LABELS_FILE) == run
    assert labelled_run(run / "metrics.jsonl") is None
    assert labelled_run(tmp_path / LABELS_FILE) is None
