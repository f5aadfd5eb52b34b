"""A run whose weights are no longer finite stops before anything of them is saved."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runs_for_tests import learnt, metrics, quiet, small
from turnwise.core.errors import DivergedError
from turnwise.recipes.run import train
from turnwise.training import loop
from turnwise.training.checkpoints import last_checkpoint
from turnwise.training.update import update


@pytest.mark.parametrize("every", [1, 10])
def test_run_with_non_finite_weights_stops_and_saves_nothing_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    def diverge(learner: Any, estimated: Any, settings: Any, step: int, *others: Any) -> dict[str, float]:
        learner.begin_step(replace(learner.settings, rate_scale=1e308 if step == 1 else 1.0))
        return update(learner, estimated, settings, step, *others)

    monkeypatch.setattr(loop, "update", diverge)
    with pytest.raises(DivergedError, match=r"^the weights are not finite after .* at learning rate 1e\+305"):
        train(small(tmp_path, checkpoint__every=every, eval__every=0, eval__episodes=2), console=quiet())
    run = tmp_path / "run"
    assert [row["step"] for row in metrics(run) if "rollout/success" in row] == [1]
    saved = sorted(each.name for each in (run / "checkpoints").glob("*"))
    assert saved == (["step_000001"] if every == 1 else [])
    if every == 1:
        assert last_checkpoint(run / "checkpoints").name == "step_000001"
        assert all(bool(tensor.isfinite().all()) for tensor in learnt(run, step=1).values())
