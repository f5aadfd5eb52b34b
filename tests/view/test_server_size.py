"""A long run: its list at once, a trajectory in no time, little memory. A tenth of what benchmarks/viewer.py takes."""

import importlib
import time
import tracemalloc
from pathlib import Path

import pytest
from server_for_tests import ask, client

ROOT = Path(__file__).parents[2]
STEPS, EPISODES = 1000, 10
START = "from turnwise.cli.view import app; app()"


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        importlib.import_module("viewer").make_run(folder / "long", steps=STEPS, episodes=EPISODES, keys=30)
    return folder


def seconds(began: float) -> float:
    return time.process_time() - began


def test_a_long_run_is_listed_and_opened_at_once(long_run: Path) -> None:
    """A tenth of the time that the whole size may take for what grows with it, but for a busy machine."""
    asked = client(long_run)
    began = time.process_time()
    assert ask(asked, "runs")["runs"][0]["step"] == STEPS
    answer = ask(asked, "trajectories", run="long", sort="-reward")
    assert seconds(began) < 0.4
    assert (answer["total"], len(answer["rows"]), len(answer["steps"])) == (STEPS * EPISODES, 100, STEPS)
    began = time.process_time()
    number = answer["rows"][0]["number"]
    shown = ask(asked, "trajectory", run="long", number=number)
    assert seconds(began) < 0.2
    assert shown["row"]["reward"] == answer["rows"][0]["reward"]
    assert len(shown["pictures"]) == 3
    assert None not in shown["pictures"]
    assert ask(asked, "metrics", run="long", after=STEPS - 1)["columns"]["step"] == [STEPS]


def test_what_is_read_is_kept_small(long_run: Path) -> None:
    """100,000 trajectories and 10,000 rows of metrics would take ten times this: the server stays below 300 MB."""
    asked = client(long_run)
    ask(asked, "runs")
    tracemalloc.start()
    try:
        ask(asked, "trajectories", run="long", limit=1)
        ask(asked, "metrics", run="long", keys="none", after=STEPS)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4 << 20
    assert peak < 20 << 20


def test_only_what_is_new_is_read_again(long_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = client(long_run)
    for name in ("runs", "trajectories", "metrics"):
        ask(asked, name, run="long")

    def refuse(row: bytes) -> None:
        raise AssertionError("a line was read twice")

    for module in ("index", "rows"):
        monkeypatch.setattr(f"turnwise.view.{module}.read_row", refuse)
    assert ask(asked, "runs")["runs"][0]["step"] == STEPS
    assert ask(asked, "trajectories", run="long")["total"] == STEPS * EPISODES
    assert ask(asked, "metrics", run="long")["rows"] == STEPS
