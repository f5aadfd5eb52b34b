"""Alarms in a run: reported once, answered by rolling back, the same after a resume."""

import math
from pathlib import Path
from typing import Any

import torch

from learners_for_tests import learn, make_learner, random_groups, settings_of, weights
from turnwise.algos.alarms import AlarmSettings
from turnwise.core.learner import StepSettings
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.record.jsonl import replace_nonfinite
from turnwise.training.checkpoints import Checkpoints, State
from turnwise.training.diagnostics import AlarmWatcher, roll_back


def row(step: int, grad_norm: float) -> dict[str, Any]:
    return {"step": step, "rollout/success": 0.2, "train/grad_norm": grad_norm}


STEADY = [row(step, 1.0 + 0.01 * step) for step in range(1, 20)]


def test_alarm_is_reported_once_also_after_a_resume() -> None:
    alarms: list[tuple[int, str]] = []
    watcher = AlarmWatcher(report=lambda *alarm: alarms.append(alarm))
    watcher.begin([], State(step=0, best_success=None, skipped_steps=0))
    raised = [watcher.raises_alarm(each) for each in [*STEADY, row(20, 90.0), row(21, 95.0)]]
    assert raised == [False] * 19 + [True, False]
    assert len(alarms) == 1 and alarms[0][0] == 20 and "gradient norm 90" in alarms[0][1]
    resumed = AlarmWatcher(report=lambda *alarm: alarms.append(alarm))
    resumed.begin([*STEADY, row(20, 90.0)], State(step=20, best_success=None, skipped_steps=0))
    assert not resumed.raises_alarm(row(21, 95.0)) and len(alarms) == 1


def test_skipped_steps_survive_a_resume() -> None:
    alarms: list[tuple[int, str]] = []
    live, resumed = (AlarmWatcher(report=lambda *alarm: alarms.append(alarm)) for _ in range(2))
    state = State(step=0, best_success=None, skipped_steps=0)
    live.begin([], state)
    raised = [live.raises_alarm(each) for each in [*STEADY, row(20, math.nan), row(21, math.inf)]]
    assert raised == [False] * 19 + [True, False]
    resumed.begin([*STEADY, replace_nonfinite(row(20, math.nan))], state)
    assert not resumed.raises_alarm(row(21, math.inf)) and len(alarms) == 1


def test_watcher_uses_the_bounds_it_is_given() -> None:
    watcher = AlarmWatcher(report=lambda step, text: None, settings=AlarmSettings(max_grad_norm=100.0))
    watcher.begin(STEADY, State(step=19, best_success=None, skipped_steps=0))
    assert not watcher.raises_alarm(row(20, 90.0)) and watcher.raises_alarm(row(21, 101.0))


def test_watcher_counts_only_steps_after_a_rollback() -> None:
    watcher = AlarmWatcher(report=lambda step, text: None)
    watcher.begin([*STEADY, row(20, 90.0)], State(step=20, best_success=None, skipped_steps=0, watched_from=20))
    assert not any(watcher.raises_alarm(row(step, 100.0)) for step in range(21, 25)), "too few rows to judge by"


def test_roll_back_restores_the_oldest_checkpoint_and_halves_the_rate(tmp_path: Path) -> None:
    config = settings_of()
    learner = make_learner(config)
    checkpoints = Checkpoints(tmp_path, keep_last=2, tokenizer=tiny_tokenizer())
    state = State(step=1, best_success=None, skipped_steps=0)
    assert roll_back(state, checkpoints, lambda folder, at: None) is None
    checkpoints.save(learner, state)
    learn(learner, random_groups(), config, step=1)
    checkpoints.save(learner, State(step=2, best_success=None, skipped_steps=0))
    asked: list[tuple[str, int, int]] = []
    back = roll_back(
        State(step=3, best_success=0.5, skipped_steps=2),
        checkpoints,
        lambda folder, at: asked.append((Path(folder).name, at.step, at.skipped_steps)),
    )
    assert asked == [("step_000001", 1, 2)], "skipped steps stay counted, as in a resumed run"
    assert checkpoints.steps() == [tmp_path / "step_000001"], "what was rolled back is not gone back to later"
    assert back == State(step=3, best_success=0.5, skipped_steps=2, rate_scale=0.5, rollbacks=1, watched_from=3)


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
