"""Which of a run's earlier policies are its opponents."""

from pathlib import Path

from turnwise.training.selfplay import Snapshots


def test_opponents_depend_on_the_step_only(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, every=10, keep=3, tokenizer=None)
    assert [snapshots.at(step) for step in (0, 9, 10, 25, 45)] == [[0], [0], [0, 10], [0, 10, 20], [20, 30, 40]]
    assert [snapshots.before(step) for step in (10, 20, 40)] == [[0], [0, 10], [10, 20, 30]], "never the step's own"
    assert [step for step in range(31) if snapshots.due(step)] == [0, 10, 20, 30]


def test_snapshots_are_dropped_when_no_longer_needed(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, every=10, keep=3, tokenizer=None)

    def names() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir())

    for step in range(0, 60, 10):
        snapshots.path(step).mkdir()
    snapshots.drop_after(40)
    assert names() == [f"step_{step:06d}" for step in (0, 10, 20, 30, 40)]
    snapshots.drop_unneeded(oldest=40)
    assert names() == [f"step_{step:06d}" for step in (10, 20, 30, 40)], "the ladder of step 40 climbs from 10"
