import json
import math
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from replay_to_kill import CAPACITY, add_until_killed, numbered

from episodes_for_tests import task_of, trajectories, trajectory_of, turn_of
from processes_for_tests import forked_with_output
from turnwise.core.errors import UserError
from turnwise.core.images import image_token_id
from turnwise.core.trajectory import Trajectory
from turnwise.data.replay import Replay
from turnwise.record.trajectories import open_replay


def single(number: int, *, reward: float = 0.0, task: int = 0) -> Trajectory:
    turn = turn_of([1, 2], [number, 3], extends=False, reward=reward, logprobs=[-0.25, -1.5])
    return trajectory_of([turn], task=task_of("test", task), member=number)


def members(replay: Replay) -> list[int]:
    return [replay.read(entry).member for entry in replay.entries]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@settings(max_examples=30, deadline=None)
@given(trajectories())
def test_replay_returns_trajectories_as_added(
    tmp_path_factory: pytest.TempPathFactory, given: list[Trajectory]
) -> None:
    folder = tmp_path_factory.mktemp("replay")
    given = [replace(each, member=number) for number, each in enumerate(given)]
    replay = open_replay(folder, 100)
    assert all(replay.add(each, step=3, source=f"line {number}") for number, each in enumerate(given))
    for opened in (replay, open_replay(folder, 100)):
        assert [opened.read(entry) for entry in opened.entries] == given
        assert [entry.total_reward for entry in opened.entries] == [each.total_reward for each in given]
        assert {entry.step for entry in opened.entries} == {3}


def test_replay_keeps_the_ids_of_images(tmp_path: Path) -> None:
    turn = turn_of((1, 2), (3, 4))
    image = image_token_id("1ffffffffffff", 7)
    added = trajectory_of([replace(turn, context_ids=(1, image, 2))])
    open_replay(tmp_path, 4).add(added)
    replay = open_replay(tmp_path, 4)
    assert replay.read(replay.entries[0]).turns[0].context_ids == (1, image, 2)


def test_replay_finds_the_images_of_its_entries(tmp_path: Path) -> None:
    replay, keys = open_replay(tmp_path, 2), [f"{number:013x}" for number in (0, 1, 2, (1 << 49) - 1)]
    shown = [keys[:1], [], keys[1:3], [keys[3], keys[3], keys[1]]]
    for number, images in enumerate(shown):
        ids = [image_token_id(key, index) for key in images for index in range(3)]
        replay.add(trajectory_of([turn_of([1, *ids, 2], [number, 3])], member=number))
    assert replay.find_images() == set(keys[1:]), "of the newest two alone"


def test_replay_ignores_duplicates(tmp_path: Path) -> None:
    replay = open_replay(tmp_path, 10)
    assert replay.add(single(1))
    assert not replay.add(replace(single(1), timings={"wall_s": 2.0}))
    assert not open_replay(tmp_path, 10).add(single(1))
    other_logprobs = trajectory_of([turn_of([1, 2], [1, 3], extends=False, logprobs=[-0.25, -1.0])], member=1)
    assert replay.add(replace(other_logprobs, task=task_of("test", 0)))
    assert len(replay) == 2


def test_replay_skips_a_trajectory_without_sampled_tokens(tmp_path: Path) -> None:
    replay = open_replay(tmp_path, 10)
    assert not replay.add(trajectory_of([turn_of([1, 2], [], extends=False)]))
    assert len(replay) == 0


def test_replay_keeps_the_newest_and_deletes_old_parts(tmp_path: Path) -> None:
    replay = open_replay(tmp_path, 16)
    for number in range(50):
        replay.add(single(number), step=number)
    assert members(replay) == list(range(34, 50))
    replay.prune(40)
    assert members(replay) == list(range(34, 50))
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "part_000012"
    replay.discard_from(41)
    assert members(replay) == list(range(25, 41))


def test_replay_discards_steps_that_are_run_again(tmp_path: Path) -> None:
    replay = open_replay(tmp_path / "whole", 16)
    interrupted = open_replay(tmp_path / "interrupted", 16)
    for number in range(20):
        replay.add(single(number), step=number)
    for number in range(15):
        interrupted.add(single(number), step=number)
    interrupted.discard_from(11)
    assert members(interrupted) == list(range(11))
    for number in range(11, 20):
        assert interrupted.add(single(number), step=number)
    assert snapshot(tmp_path / "interrupted") == snapshot(tmp_path / "whole")


def test_replay_removes_what_a_kill_left_half_written(tmp_path: Path) -> None:
    replay = open_replay(tmp_path, 100)
    for number in range(3):
        replay.add(single(number))
    whole = snapshot(tmp_path)
    part = tmp_path / "part_000000"
    for name, tail in (("ids.bin", b"\1\2\3\4\5"), ("logprobs.bin", b"\0\0\0\0"), ("entries.jsonl", b'{"step":0,')):
        with (part / name).open("ab") as file:
            file.write(tail)
    (tmp_path / "part_000001").mkdir()
    assert members(open_replay(tmp_path, 100)) == [0, 1, 2]
    assert snapshot(tmp_path) == whole


def test_replay_survives_kill_minus_nine(tmp_path: Path) -> None:
    """After each kill the buffer equals one that was filled without interruption, byte for byte."""
    for after in (7, 101):
        folder = tmp_path / f"killed-{after}"
        with forked_with_output(add_until_killed, folder) as (process, lines):
            for line in lines:
                if int(line) == after:
                    break
            process.kill()
        assert process.returncode == -signal.SIGKILL
        killed = open_replay(folder, CAPACITY)
        count = killed.entries[-1].step + 1
        assert count >= after
        assert members(killed) == list(range(max(0, count - CAPACITY), count))
        undisturbed = open_replay(tmp_path / f"whole-{after}", CAPACITY)
        for number in range(count):
            undisturbed.add(numbered(number), step=number)
        killed.prune(count)
        undisturbed.prune(count)
        assert snapshot(folder) == snapshot(undisturbed.folder)


@pytest.mark.parametrize("name", ["ids.bin", "logprobs.bin"])
def test_replay_refuses_changed_arrays(tmp_path: Path, name: str) -> None:
    replay = open_replay(tmp_path, 100)
    replay.add(single(1))
    replay.add(single(2))
    path = tmp_path / "part_000000" / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    opened = open_replay(tmp_path, 100)
    assert opened.read(opened.entries[0]) == single(1)
    with pytest.raises(UserError, match=r"part_000000 line 2 has changed"):
        opened.read(opened.entries[1])
    path.write_bytes(data[:-4])
    with pytest.raises(UserError, match=f"{name} is shorter than its entries say"):
        open_replay(tmp_path, 100)


def test_replay_names_a_damaged_line(tmp_path: Path) -> None:
    replay = open_replay(tmp_path, 100)
    for number in range(3):
        replay.add(single(number))
    path = tmp_path / "part_000000" / "entries.jsonl"
    lines = path.read_text().splitlines()
    row = json.loads(lines[1])
    del row["digest"]
    path.write_text("\n".join([lines[0], json.dumps(row), lines[2]]) + "\n")
    with pytest.raises(UserError, match=r"entries.jsonl line 2 is damaged. Delete"):
        open_replay(tmp_path, 100)


def test_replay_stores_reference_logprobs_of_rendered_text(tmp_path: Path) -> None:
    replay = open_replay(tmp_path, 100)
    replay.add(single(2))
    replay.add(single(1), sampled=False, scored=False)
    entry = replay.entries[1]
    assert not entry.sampled
    assert not entry.scored
    assert np.isnan(replay.read_logprobs(entry)).all()
    assert math.isnan(replay.read(entry).turns[0].action_logprobs[0])
    replay.set_logprobs(entry, [-2.0, -3.0])
    opened = open_replay(tmp_path, 100)
    assert opened.read(opened.entries[1]).turns[0].action_logprobs == (-2.0, -3.0)
    assert opened.read(opened.entries[0]) == single(2)
    assert not opened.add(single(1), sampled=False)
    with pytest.raises(ValueError, match="1 log-probabilities for 2 tokens"):
        opened.set_logprobs(opened.entries[1], [-2.0])
    with pytest.raises(ValueError, match="2 log-probabilities"):
        opened.set_logprobs(opened.entries[0], [-2.0, -3.0])


def test_sample_depends_on_contents_and_key_alone(tmp_path: Path) -> None:
    replay = open_replay(tmp_path, 100)
    for number in range(40):
        replay.add(single(number))
    first = replay.sample(10, "seed", 1)
    assert len({entry.digest for entry in first}) == 10
    replay.sample(5, "other")
    assert replay.sample(10, "seed", 1) == first
    assert replay.sample(10, "seed", 2) != first
    assert len(replay.sample(1000, "seed", 1)) == 40


def test_sample_groups_have_one_task_and_the_smallest_size(tmp_path: Path) -> None:
    replay = open_replay(tmp_path, 100)
    for number in range(12):
        replay.add(single(number, task=number % 4))
    replay.add(single(99, task=50))
    groups = replay.sample_groups(10, 2, "seed")
    assert len(groups) == 4
    assert all(len(group) == 2 and len({entry.group for entry in group}) == 1 for group in groups)
    read = replay.read_group(groups[0])
    assert all(each.task == read.task for each in read.trajectories)


def test_sample_pairs_put_the_better_one_first(tmp_path: Path) -> None:
    replay = open_replay(tmp_path, 100)
    for number in range(12):
        replay.add(single(number, task=number % 3, reward=float(number // 3 % 2) if number % 3 else 0.5))
    for seed in range(5):
        pairs = replay.sample_pairs(10, seed)
        assert len(pairs) == 2
        assert all(better.total_reward > worse.total_reward and better.group == worse.group for better, worse in pairs)
