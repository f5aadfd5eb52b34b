"""Files of a run besides its metrics: pictures, report, tracker files; names stay inside their folder."""

from pathlib import Path

import pytest

from runs_for_tests import printed, quiet, small
from turnwise.core.errors import UserError
from turnwise.record.run_folder import RunFolder
from turnwise.run.sft import sft
from turnwise.run.train import train


def test_run_writes_pictures_report_and_tracker_metrics(tmp_path: Path) -> None:
    given = {"record__pictures_every": 2, "record__trackers": ("tensorboard",)}
    train(small(tmp_path, train__steps=2, eval__every=0, eval__episodes=1, **given), console=quiet())
    run = tmp_path / "run"
    pictures = sorted(path.name for path in (run / "trajectories").glob("*.png"))
    assert len(pictures) == 1 and pictures[0].startswith("step_000002_group_")
    assert len(list((run / "trajectories").glob("*.gif"))) == 1
    assert "</html>" in (run / "report.html").read_text()
    assert scalars(run)["rollout/success"] == [
        (row["step"], pytest.approx(row["rollout/success"], abs=1e-6))
        for row in RunFolder.open(run).read_metrics()
        if "rollout/success" in row
    ]


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the scalars that TensorBoard reads back."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (folder,) = (run / "trackers" / "tensorboard").iterdir()
    found = accumulators.EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_sft_is_tracked_and_reported(tmp_path: Path) -> None:
    given = {"sft__demos": "solver", "sft__count": 8, "sft__batch": 4, "record__trackers": ("tensorboard",)}
    sft(small(tmp_path, **given), console=quiet())
    assert (tmp_path / "run/report.html").exists() and scalars(tmp_path / "run")


def test_environment_without_pictures_is_reported_once(tmp_path: Path) -> None:
    file = tmp_path / "plain.py"
    file.write_text(
        "import turnwise as tw\n\n\nclass Plain(tw.TextEnv):\n    '''Say one.'''\n    max_turns = 1\n\n"
        "    def reset(self, rng):\n        return 'One?'\n\n    def step(self, action):\n        return tw.won()\n"
    )
    console = quiet()
    given = {"env__kind": f"{file}:Plain", "record__pictures_every": 1, "train__steps": 2, "model__warmup_steps": 1}
    train(small(tmp_path, **given), console=console)
    assert printed(console).count("this environment draws none") == 1


@pytest.mark.parametrize("name", ["../x", "a/b", "..", " ", "a\\b"])
def test_record_name_outside_the_folder_is_rejected(tmp_path: Path, name: str) -> None:
    for work, demos in ((train, None), (sft, "solver")):
        with pytest.raises(UserError, match="is not a folder name"):
            work(small(tmp_path / "runs", record__name=name, sft__demos=demos), console=quiet())
    assert not list(tmp_path.rglob("*"))


def test_sft_rejects_settings_of_pictures(tmp_path: Path) -> None:
    key = "record.pictures_every"
    with pytest.raises(UserError, match=f"{key} has no effect on SFT"):
        sft(small(tmp_path, sft__demos="solver"), console=quiet(), override_keys=[key])
