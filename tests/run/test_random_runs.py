"""Random small runs, killed and resumed, end as those left alone, bit for bit. `make soak`: a thousand of them."""

import os
from pathlib import Path

import pytest
from killed_runs import STOPPED, Moment, find_failure
from random_runs import ENVIRONMENTS, draw_case, main, raise_alarms

from processes_for_tests import Forked
from turnwise.algos.alarms import check_alarms
from turnwise.training import diagnostics

SOAK = int(os.environ.get("TURNWISE_SOAK", "0"))
FIRST = int(os.environ.get("TURNWISE_SOAK_SEED", "0" if SOAK else "11"))
"""Number of the first run. 11: two groups of one, LoRA, a context per turn, killed in the third of four steps."""
PER_TEST = 50 if SOAK else 1


@pytest.mark.parametrize("part", range(max(1, SOAK)))
def test_killed_and_resumed_random_runs_end_alike(part: int, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with (
        output.open("w") as file,
        Forked(main, tmp_path, FIRST + part * PER_TEST, PER_TEST, stdout=file.fileno()) as process,
    ):
        assert process.wait() == 0, output.read_text()


def test_draws_reach_every_environment_and_section(tmp_path: Path) -> None:
    """Settings that do not fit together are drawn again: a section that never fits would never be tested."""
    drawn = [draw_case(number, tmp_path)[0] for number in range(100)]

    def values(name: str) -> set[str]:
        return {settings[name] for settings in drawn if name in settings}

    assert values("env.kind") == set(ENVIRONMENTS)
    assert values("context") == {"window", "turn", "summary"}
    assert values("selfplay.opponent") == {"self", "past"}
    for name in ("lora.rank", "curriculum.pool", "reward.functions", "algo.kl_coef", "algo.filter", "env.mix."):
        assert any(key.startswith(name) for settings in drawn for key in settings), name


@pytest.mark.parametrize(
    ("moments", "statuses", "failure"),
    [
        ([("stop", 0.9)], [STOPPED], None),
        ([("half", 1), ("stop", 0.8), ("time", 0.7)], [-9, STOPPED], None),
        ([("time", 0.9)], [-9], None),
        ([("stop", 0.0), ("event", 0.5)], [-15, -9, 0], None),
        ([("event", 0.5)], [-9, 1], "start 1 ended with status 1"),
        ([("event", 0.5)], [-9, -9], "start 1 ended with status -9"),
        ([("stop", 0.5)], [1, 0], "start 0 ended with status 1"),
        ([("line", 3)], [STOPPED, 0], f"start 0 ended with status {STOPPED}"),
    ],
)
def test_find_failure_allows_kills_and_stops_at_their_moments(
    moments: list[Moment], statuses: list[int], failure: str | None
) -> None:
    assert find_failure(moments, statuses) == failure


def test_raise_alarms_does_not_reach_the_next_run() -> None:
    with raise_alarms(0):
        assert diagnostics.check_alarms is not check_alarms  # type: ignore[attr-defined]
    assert diagnostics.check_alarms is check_alarms  # type: ignore[attr-defined]
