"""Alarms in a run: reported once, answered by rolling back, the same after a resume."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from learners_for_tests import learn, make_learner, random_groups, settings_of, weights
from turnwise.algos.alarms import AlarmSettings
from turnwise.core.learner import StepSettings
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.record.jsonl import replace_nonfinite
from turnwise.record.rows import read_records
from turnwise.record.steps import StepRecord
from turnwise.run.build_learner import build_coefficients
from turnwise.training.checkpoints import Checkpoints, State
from turnwise.training.coefficients import Coefficients
from turnwise.training.diagnostics import Alarms, Rollback


def row(step: int, grad_norm: float) -> dict[str, Any]:
    return {"step": step, "rollout/success": 0.2, "train/grad_norm": grad_norm}


STEADY = [row(step, 1.0 + 0.01 * step) for step in range(1, 20)]


class Watched:
    """The part over a list of rows, as a run's folder has them."""

    def __init__(
        self, rows: Sequence[dict[str, Any]] = (), rollback: Any = None, explore_more: Any = None, **state: float
    ) -> None:
        self.alarms: list[tuple[int, str]] = []
        self.notes: list[str] = []
        folder: Any = SimpleNamespace(
            read_records=lambda: read_records(rows), append_alarm=lambda *alarm: self.alarms.append(alarm)
        )
        self.part = Alarms(
            folder, self.notes.append, AlarmSettings(), rollback or SimpleNamespace(at_most=0), explore_more
        )
        self.part.load_state(self.part.state() | state)
        asyncio.run(self.part.begin(len(rows)))

    def alarms_at(self, row: dict[str, Any]) -> bool:
        before, record = len(self.alarms), StepRecord.from_row(row)
        self.part.after(record)
        return len(self.alarms) > before


def test_alarm_is_reported_once_also_after_a_resume() -> None:
    watched = Watched()
    raised = [watched.alarms_at(each) for each in [*STEADY, row(20, 90.0), row(21, 95.0)]]
    assert raised == [False] * 19 + [True, False]
    ((step, text),) = watched.alarms
    assert step == 20 and "gradient norm 90" in text and watched.notes == [f"alarm: {text}"]
    resumed = Watched([*STEADY, row(20, 90.0)])
    assert not resumed.alarms_at(row(21, 95.0)) and not resumed.alarms


def test_skipped_steps_survive_a_resume() -> None:
    live = Watched()
    raised = [live.alarms_at(each) for each in [*STEADY, row(20, math.nan), row(21, math.inf)]]
    assert raised == [False] * 19 + [True, False]
    resumed = Watched([*STEADY, replace_nonfinite(row(20, math.nan))])
    assert not resumed.alarms_at(row(21, math.inf))


def test_alarms_of_stored_episodes_survive_a_resume() -> None:
    """Their rows have no rollout."""
    steady = [{"step": row["step"], "data/success": 0.2, "train/grad_norm": row["train/grad_norm"]} for row in STEADY]
    resumed = Watched(steady)
    assert resumed.alarms_at({"step": 20, "data/success": 0.2, "train/grad_norm": 90.0})


def test_alarms_use_the_bounds_they_are_given() -> None:
    watched = Watched(STEADY)
    watched.part._settings = AlarmSettings(max_grad_norm=100.0)
    assert not watched.alarms_at(row(20, 90.0)) and watched.alarms_at(row(21, 101.0))


def test_alarms_count_only_steps_after_a_rollback() -> None:
    watched = Watched([*STEADY, row(20, 90.0)], watched_from=20)
    assert not any(watched.alarms_at(row(step, 100.0)) for step in range(21, 25)), "too few rows to judge by"


def test_rollback_restores_the_oldest_checkpoint_and_halves_the_rate(tmp_path: Path) -> None:
    config = settings_of()
    learner = make_learner(config)
    checkpoints = Checkpoints(tmp_path, keep_last=2, tokenizer=tiny_tokenizer())
    asked: list[tuple[str, int, int]] = []
    rollback = Rollback(
        checkpoints,
        learner,
        lambda folder, at: asked.append((folder.name, at.step, at.skipped_steps)),
        at_most=2,
        on_restore=[lambda: asked.append(("restored", 0, 0))],
    )
    assert rollback.go_back() is None and not asked
    checkpoints.save(learner, State(step=1, skipped_steps=0))
    learn(learner, random_groups(), config, step=1)
    checkpoints.save(learner, State(step=2, skipped_steps=0))
    learner._skipped_steps = 2
    watched = Watched(STEADY, rollback=rollback, rate_scale=0.5, rollbacks=1)
    assert watched.alarms_at(row(20, 90.0))
    assert asked == [("step_000001", 1, 2), ("restored", 0, 0)], "skipped steps stay counted, as in a resumed run"
    assert checkpoints.steps() == [tmp_path / "step_000001"], "what was rolled back is not gone back to later"
    assert watched.part.state() == {"rate_scale": 0.25, "rollbacks": 2, "watched_from": 20}
    assert watched.notes[-1] == "Rolled back to step 1; the learning rate is now multiplied by 0.25."
    assert watched.part.adjust(StepSettings(step=20)).rate_scale == 0.25
    assert not any(watched.alarms_at(row(step, 100.0)) for step in range(21, 25)), "too few rows to judge by"
    assert len(asked) == 2


def test_smaller_learning_rate_moves_the_weights_less() -> None:
    config = settings_of()
    moved = []
    for scale in (1.0, 0.5):
        learner = make_learner(config)
        before = weights(learner.model)
        learner.begin_step(StepSettings(step=0, rate_scale=scale))
        learn(learner, random_groups(), config)
        moved.append(max(float((weights(learner.model)[name] - before[name]).abs().max()) for name in before))
    assert moved[1] < 0.6 * moved[0]
    assert torch.isfinite(torch.tensor(moved)).all()


COLLAPSING = [row(step, 1.0) | {"rollout/action_entropy": 1.0 if step < 15 else 0.1} for step in range(1, 25)]


def test_alarms_are_answered_only_with_adjust() -> None:
    coefficients = Coefficients(build_coefficients(settings_of().algo), kl_in_loss=True)
    for explore_more, answer, boost in ((None, "", 1.0), (coefficients.explore_more, BOOSTED, 2.0)):
        watched = Watched(COLLAPSING[:10], explore_more=explore_more)
        for each in COLLAPSING[10:]:
            watched.alarms_at(each)
        ((_, text),) = watched.alarms
        assert text.partition("step ")[2].partition(";")[2] == answer and watched.notes == [f"alarm: {text}"]
        assert coefficients.value.boost == boost
        assert watched.part.rate_scale == 1.0


BOOSTED = " entropy bonuses are now multiplied by 2"


def test_spike_halves_the_learning_rate_with_adjust() -> None:
    watched = Watched(STEADY, explore_more=lambda: None)
    assert watched.alarms_at(row(20, 90.0))
    assert watched.part.adjust(StepSettings(step=20)).rate_scale == 0.5
    assert watched.alarms[0][1].endswith("; the learning rate is now multiplied by 0.5")
    assert watched.part.state()["rate_scale"] == 0.5, "a resumed run keeps it"
    low = Watched(STEADY, explore_more=lambda: None, rate_scale=1 / 16)
    assert low.alarms_at(row(20, 90.0)) and low.part.rate_scale == 1 / 16


def test_boost_multiplies_both_entropy_bonuses_up_to_a_bound() -> None:
    algo = settings_of(algo__entropy_coef=0.01, algo__action_entropy_target=0.5).algo
    coefficients = Coefficients(build_coefficients(algo), kl_in_loss=True)
    assert [coefficients.explore_more() is not None for _ in range(4)] == [True, True, True, False]
    assert coefficients.adjust(StepSettings(step=0)).entropy_coef == 8 * 0.01
    assert coefficients.value.exploration_coef == 8 * 0.1
    restored = Coefficients(build_coefficients(algo), kl_in_loss=True)
    restored.load_state(coefficients.state())
    assert restored.value == coefficients.value
    nothing = Coefficients(build_coefficients(settings_of(algo__entropy_coef=0.0).algo), kl_in_loss=True)
    assert nothing.explore_more() is None and "entropy_boost" not in nothing.state()
