"""A long run: a request reads what it shows and keeps little in memory.

The run is a twenty-fifth of the one in benchmarks/viewer.py, which measures response times.
"""

import importlib
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from server_for_tests import ask, client

from turnwise.viewer.json_io import read_row

ROOT = Path(__file__).parents[2]
STEPS, EPISODES = 400, 10


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        importlib.import_module("viewer").make_run(folder / "long", steps=STEPS, episodes=EPISODES, keys=30)
    return folder


def test_long_run_is_read_once_and_trajectories_singly(long_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, read, lines = client(long_run), read_row, list[bytes]()

    def counted(line: bytes) -> dict[str, Any] | None:
        lines.append(line)
        return read(line)

    for name, module in sys.modules.items():
        if name.startswith("turnwise.viewer.") and hasattr(module, "read_row"):
            monkeypatch.setattr(module, "read_row", counted)
    assert ask(asked, "runs")["runs"][0]["step"] == STEPS
    answer = ask(asked, "trajectories", run="long", sort="-reward")
    assert STEPS * EPISODES <= len(lines) <= STEPS * (EPISODES + 2), "each line of index and metrics is read once"
    assert (answer["total"], len(answer["rows"]), len(answer["steps"])) == (STEPS * EPISODES, 100, STEPS)
    lines.clear()
    number = answer["rows"][0]["number"]
    shown = ask(asked, "trajectory", run="long", number=number)
    assert sum(b'"turns"' in line for line in lines) == 1, "no other trajectory is read"
    assert shown["row"]["reward"] == answer["rows"][0]["reward"]
    assert len(shown["pictures"]) == 3
    assert None not in shown["pictures"]
    assert ask(asked, "metrics", run="long", after=STEPS - 1)["columns"]["step"] == [STEPS]


def test_long_run_takes_little_memory(long_run: Path) -> None:
    """100,000 trajectories and 10,000 metric rows would take 25 times this, which keeps the server below 300 MB."""
    asked = client(long_run)
    ask(asked, "runs")
    tracemalloc.start()
    try:
        ask(asked, "trajectories", run="long", limit=1)
        ask(asked, "metrics", run="long", keys="none", after=STEPS)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1.6 * (1 << 20)
    assert peak < 8 << 20


def test_later_requests_read_only_new_lines(long_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = client(long_run)
    for name in ("runs", "trajectories", "metrics"):
        ask(asked, name, run="long")

    def refuse(row: bytes) -> None:
        raise AssertionError("a line was read twice")

    for module in ("index", "metrics"):
        monkeypatch.setattr(f"turnwise.viewer.{module}.read_row", refuse)
    assert ask(asked, "runs")["runs"][0]["step"] == STEPS
    assert ask(asked, "trajectories", run="long")["total"] == STEPS * EPISODES
    assert ask(asked, "metrics", run="long")["rows"] == STEPS
