"""The route that returns who did what in the steps of a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from server_for_tests import ask, client, get, make_run


def write_spans(run: Path, *steps: int) -> None:
    rows: list[dict[str, Any]] = [
        {
            "step": step,
            "spans": [["engine replica 10", "episodes", 10.0 * step, 10.0 * step + 4], *second_replica(step)],
        }
        for step in steps
    ]
    with (run / "spans.jsonl").open("a") as file:
        file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def second_replica(step: int) -> list[list[Any]]:
    return [["engine replica 2", "episodes", 10.0 * step + 1, 10.0 * step + 5.5]]


def test_last_steps_are_returned_with_lanes_in_natural_order(tmp_path: Path) -> None:
    write_spans(make_run(tmp_path / "run"), 1, 2, 3)
    answer = ask(tmp_path, "spans", run="run", count=2)
    assert (answer["first"], answer["last"], answer["steps"], answer["seconds"]) == (1, 3, [2, 3], 15.5)
    assert [lane["name"] for lane in answer["lanes"]] == ["engine replica 2", "engine replica 10"]
    assert answer["lanes"][0]["spans"] == [["episodes", 1.0, 5.5], ["episodes", 11.0, 15.5]]


def test_earlier_steps_are_returned_on_request(tmp_path: Path) -> None:
    write_spans(make_run(tmp_path / "run"), 1, 2, 3, 4)
    assert ask(tmp_path, "spans", run="run", count=2, last=2)["steps"] == [1, 2]
    assert ask(tmp_path, "spans", run="run", count=2, last=0)["steps"] == [1]
    assert get(tmp_path, "spans", run="run", count=1000).status_code == 400


def test_file_is_followed_and_read_again_when_replaced(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    asked = client(tmp_path)
    assert ask(asked, "spans", run="run") == {"first": None, "last": None, "steps": [], "seconds": 0.0, "lanes": []}
    write_spans(run, 1)
    assert ask(asked, "spans", run="run")["last"] == 1
    write_spans(run, 2)
    assert ask(asked, "spans", run="run")["last"] == 2
    (run / "spans.jsonl").unlink()
    write_spans(run, 7)
    assert ask(asked, "spans", run="run")["steps"] == [7]


@pytest.mark.parametrize(
    "line",
    [
        '{"step":2,"spans":[["a","b",5,4]]}',
        '{"step":2,"spans":[["a","b","x",4],["a"],7]}',
        '{"step":2,"spans":{}}',
        '{"step":2,"spans":[["a","b",1e400,2e400]]}',
        "nonsense",
    ],
)
def test_broken_spans_are_left_out(tmp_path: Path, line: str) -> None:
    run = make_run(tmp_path / "run")
    write_spans(run, 1)
    with (run / "spans.jsonl").open("a") as file:
        file.write(line + "\n")
    lanes = ask(tmp_path, "spans", run="run")["lanes"]
    assert [lane["name"] for lane in lanes] == ["engine replica 2", "engine replica 10"]
