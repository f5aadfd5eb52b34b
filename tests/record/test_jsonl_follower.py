import os
from pathlib import Path

from turnwise.record.jsonl_follower import JsonlFollower


def test_follower_returns_each_complete_row_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    follower = JsonlFollower(path)
    assert follower.poll().rows == []  # not there yet
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"st')
    assert [row["step"] for row in follower.poll().rows] == [1, 2]
    assert follower.poll().rows == []
    with path.open("ab") as file:
        file.write(b'ep": 3}\n')
    assert [row["step"] for row in follower.poll().rows] == [3]


def test_follower_restarts_when_the_file_is_truncated_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n')
    follower = JsonlFollower(path)
    follower.poll()
    os.truncate(path, len(b'{"step": 1}\n'))
    cut = follower.poll()
    assert cut.reset and [row["step"] for row in cut.rows] == [1]
    longer = tmp_path / "aside"
    longer.write_bytes(b'{"step": 1}\n{"step": 9}\n{"step": 10}\n')  # a copy of the file, extended
    longer.replace(path)
    grown = follower.poll()
    assert not grown.reset and [row["step"] for row in grown.rows] == [9, 10]
    longer.write_bytes(b'{"step": 1}\n{"step": 8}\n{"step": 10}\n{"step": 11}\n')  # different content, but longer
    longer.replace(path)
    replaced = follower.poll()
    assert replaced.reset and [row["step"] for row in replaced.rows] == [1, 8, 10, 11]
    assert not follower.poll().reset


def test_follower_skips_and_counts_broken_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\nnonsense\n\xff\xfe\n[1]\n' + b"[" * 100_000 + b'\n{"step": 2}\n')
    follower = JsonlFollower(path)
    assert [row["step"] for row in follower.read_all()] == [1, 2]
    assert follower.broken == 4
