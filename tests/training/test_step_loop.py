"""Steps of the loop, with a real learner and gatherer: what reaches the optimizer is what was asked for."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from step_by_hand_for_tests import assert_same_gradients
from torch import Tensor

from learners_for_tests import gradients, make_learner, random_groups, settings_of
from turnwise.algos.alarms import AlarmSettings
from turnwise.algos.entropy import EntropyCoefficient
from turnwise.algos.kl import KlCoefficient
from turnwise.algos.turn_discount import AdaptiveDiscount, CriticFit
from turnwise.config.schema import Config
from turnwise.core.errors import LearnerLost
from turnwise.core.protocols import WeightSource
from turnwise.core.task import Task
from turnwise.core.trajectory import Group
from turnwise.engine.scripted import ScriptedEngine
from turnwise.record.rows import read_records
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rollout.collect import CollectedGroups
from turnwise.rollout.tasks import Curriculum, EnvMixEntry, TaskSource, task_name
from turnwise.run.build import build_rewards
from turnwise.run.build_learner import build_coefficients, estimate_settings, update_settings
from turnwise.training.checkpoints import SaveCheckpoints, State
from turnwise.training.coefficients import AdaptiveCoefficients, Coefficients
from turnwise.training.diagnostics import Alarms, Rollback
from turnwise.training.estimators.on_policy import OnPolicy
from turnwise.training.learner import LocalLearner
from turnwise.training.learner_thread import ThisThread
from turnwise.training.loop import Loop, LoopLimits
from turnwise.training.sources.played import Played, TaskResults, filter_groups
from turnwise.training.step import Part
from turnwise.training.step_record import RunFiles
from turnwise.training.validation import Validation

START = State(step=0, skipped_steps=0)
GROUPS = 4
FILTER = {"algo__filter": "absolute", "algo__filter__value": 0.01, "algo__filter__by": "reward_std"}


class FakeCollector:
    """Plays the same random groups every step; in every other one all members earn the same."""

    async def collect(self, tasks: list[Task], **_: Any) -> CollectedGroups:
        return CollectedGroups(groups=tuple(played(tasks)), counts=Counter())


def played(tasks: Sequence[Task]) -> list[Group]:
    found = []
    for number, (task, group) in enumerate(zip(tasks, random_groups(groups=len(tasks)), strict=True)):
        members = [replace(each, task=task) for each in group.trajectories]
        if number % 2:
            members = [_earning_nothing(each) for each in members]
        found.append(Group(task=task, trajectories=tuple(members)))
    return found


def _earning_nothing(trajectory: Any) -> Any:
    turns = tuple(replace(turn, reward=0.0) for turn in trajectory.turns)
    return replace(trajectory, turns=turns, turn_rewards=(0.0,) * len(turns))


@dataclass
class Taken:
    """An optimizer step."""

    gradients: dict[str, Tensor]
    rate: float
    """The learning rate that it was taken with."""
    kl_coef: float
    entropy_coef: float

    def length(self) -> float:
        """Return the length of a step of plain gradient descent."""
        return self.rate * float(torch.stack([each.norm() for each in self.gradients.values()]).norm())


def watch_steps(learner: LocalLearner) -> list[Taken]:
    """Steps of the policy's optimizer, as they are taken."""
    taken, step = list[Taken](), learner.optimizer.step

    def watched(*arguments: Any, **named: Any) -> Any:
        found = {f"policy.{name}": each.grad.clone() for name, each in learner.model.named_parameters()}
        result = step(*arguments, **named)
        rate = learner.optimizer._parts[0].param_groups[0]["lr"]
        settings = learner.settings
        taken.append(Taken(gradients=found, rate=rate, kl_coef=settings.kl_coef, entropy_coef=settings.entropy_coef))
        return result

    learner.optimizer.step = watched  # type: ignore[method-assign]
    return taken


@dataclass
class Ran:
    loop: Loop
    state: State
    taken: list[Taken]
    rows: list[dict[str, Any]]
    saved: list[tuple[int, bool]]
    """Step, and whether it is the best."""


class RecordingEngine(ScriptedEngine):
    """Remembers the versions that were published."""

    def __init__(self) -> None:
        super().__init__(lambda key, turn, ids: (), stop_ids=())
        self.published: list[int] = []

    async def publish(self, version: int, weights: WeightSource) -> None:
        self.published.append(version)


class FakeStore(SimpleNamespace):
    """Checkpoints that remember what was saved."""

    every = 10**6

    def save(self, learner: Any, state: State, best: bool = False) -> Path:
        self.saved.append((state.step, best))
        return Path()

    def steps(self) -> list[Path]:
        return []


def run(
    config: Config,
    *,
    start: State = START,
    steps: int = 1,
    successes: Sequence[float] = (),
    curriculum: Curriculum | None = None,
) -> Ran:
    """`steps` steps of the loop from `start`. Evaluations succeed as listed, step by step."""
    learner = make_learner(config, moved=0.02)
    taken, rows, saved = watch_steps(learner), list[dict[str, Any]](), list[tuple[int, bool]]()
    tasks = TaskSource(mix=(EnvMixEntry(env="test"),), run_seed=0, curriculum=curriculum)
    results, settings = TaskResults(tasks), estimate_settings(config.algo, config.reward, 1000)
    coefficients = Coefficients(build_coefficients(config.algo), kl_in_loss=settings.kl_in_reward is None)
    source = Played(
        tasks=tasks,
        results=results,
        collector=FakeCollector(),  # type: ignore[arg-type]
        greedy=None,
        rewards=build_rewards(config.reward, config.rollout, JudgeRegistry(), str),
        select=partial(filter_groups, learner=learner, algo=config.algo, micro_tokens=1000),
        scale=config.algo.filter.rate_scale,
        count=GROUPS,
        group_size=3,
        refill=0,
        show=lambda phase, done, total: None,
    )
    folder: Any = SimpleNamespace(
        read_records=lambda: read_records(rows), append_metrics=lambda record: rows.append(record.to_row())
    )
    rollback = Rollback(FakeStore(), learner, lambda folder, state: None, at_most=0)  # type: ignore[arg-type]
    parts: list[Part] = [results, coefficients, RunFiles(folder)]
    parts.append(Alarms(folder, lambda text: None, AlarmSettings(), rollback))

    async def evaluate(step: int) -> float:
        return successes[step - 1]

    last = start.step + steps
    saver = SaveCheckpoints(FakeStore(saved=saved), learner, parts, steps=last)  # type: ignore[arg-type]
    parts.append(Validation(evaluate, folder, every=1 if successes else 0, steps=last, best=saver))
    engine = RecordingEngine()
    loop = Loop(
        source=source,
        estimator=OnPolicy(settings, coefficients),
        engine=engine,
        learner=learner,
        parts=[*parts, saver],
        update_settings=update_settings(config.algo, config.critic, config.train, config.seed, 1000),
        limits=LoopLimits(steps=last),
        runner=ThisThread(),
    )
    return Ran(loop=loop, state=asyncio.run(loop.run(start)), taken=taken, rows=rows, saved=saved)


def tasks_of(step: int = 0) -> list[Task]:
    return TaskSource(mix=(EnvMixEntry(env="test"),), run_seed=0).draw(step, GROUPS)


def test_filter_scale_shortens_the_step() -> None:
    """Two of four groups are kept: a step of half the length, whichever way it is made shorter."""
    whole, half = (run(settings_of(**FILTER, algo__filter__scale=scale)).taken for scale in ("none", "share"))
    assert len(whole) == len(half) == 1
    assert half[0].length() == pytest.approx(0.5 * whole[0].length(), rel=1e-4)


def test_filter_scale_shortens_the_critics_step() -> None:
    rates = []
    for scale in ("none", "share"):
        critic = run(settings_of("head", **FILTER, algo__filter__scale=scale)).loop.learner.critic_optimizer
        assert critic is not None
        rates.append(critic._parts[0].param_groups[0]["lr"])
    assert rates[1] == pytest.approx(0.5 * rates[0])


def test_groups_that_were_filtered_out_are_not_trained() -> None:
    config = settings_of(**FILTER)
    kept = [group for number, group in enumerate(played(tasks_of())) if number % 2 == 0]
    expected = gradients(make_learner(config, moved=0.02), kept, config)
    assert_same_gradients(run(config).taken[0].gradients, expected)


def test_kl_in_the_reward_is_not_in_the_loss() -> None:
    config = settings_of(algo__advantage="reinforce", algo__kl_in="reward", algo__kl_estimator="k1", algo__kl_coef=0.5)
    expected = gradients(make_learner(config, moved=0.02), played(tasks_of()), config)
    assert_same_gradients(run(config).taken[0].gradients, expected)


def test_adaptive_kl_coefficient_moves_from_step_to_step() -> None:
    config = settings_of(algo__kl_coef=0.1, algo__kl_target=1e-6, algo__kl_estimator="k2")
    ran = run(config, steps=2)
    raised = 0.1 * (1 + 0.2 * 12 / 10_000)  # far above the target: the largest change, over twelve trajectories
    assert [each.kl_coef for each in ran.taken] == pytest.approx([0.1, raised], rel=1e-9)
    assert ran.state.parts["coefficients"]["kl_coef"] == pytest.approx(raised * (1 + 0.2 * 12 / 10_000), rel=1e-9)
    assert [row["train/kl_coef"] for row in ran.rows] == pytest.approx(
        [raised, ran.state.parts["coefficients"]["kl_coef"]]
    )


def test_loop_uses_restored_coefficients() -> None:
    """A step from a checkpoint is the step of settings that have its numbers."""
    given = {
        "algo__advantage": "turn_gae",
        "algo__advantage__whiten": False,
        "algo__advantage__lam_turn": 0.9,
        "algo__kl_target": 0.01,
    }
    adaptive = settings_of("head", **given, algo__advantage__gamma_turn="adaptive", algo__kl_coef=0.1)
    fixed = settings_of("head", **given, algo__advantage__gamma_turn=0.5, algo__kl_coef=0.4)
    restored = replace(START, parts={"coefficients": {"kl_coef": 0.4, "gamma_turn": 0.5}})
    ran = run(adaptive, start=restored)
    assert_same_gradients(ran.taken[0].gradients, run(fixed).taken[0].gradients)
    assert ran.taken[0].kl_coef == 0.4
    with pytest.raises(AssertionError):
        assert_same_gradients(run(adaptive).taken[0].gradients, run(fixed).taken[0].gradients)


def test_all_adaptive_coefficients_move_in_the_same_step() -> None:
    before = AdaptiveCoefficients(
        kl=KlCoefficient(value=1.0, target=0.1, horizon=10.0),
        entropy=EntropyCoefficient(value=0.01, least=0.001, target=0.4),
        discount=AdaptiveDiscount(gamma=1.0),
    )
    after = before.after(5.0, 0.3, 5, {0: CriticFit(explained=0.9, count=20), 1: CriticFit(explained=0.81, count=20)})
    assert after.kl.value == pytest.approx(1.1)
    assert after.entropy.value == pytest.approx(0.01 * math.exp(0.025))
    assert after.discount is not None and after.discount.gamma == pytest.approx(0.9 + 0.1 * 0.9)
    assert before.restore(after.numbers()) == after


def test_entropy_coefficient_of_a_step_follows_the_entropy_before_it() -> None:
    """The policy is nearly uniform over its vocabulary: below one target, above the other."""
    coefs = []
    for target in (100.0, 1.0):
        ran = run(settings_of(algo__entropy_coef=0.02, algo__entropy_target=target), steps=3)
        coefs.append([taken.entropy_coef for taken in ran.taken])
        assert [row["train/entropy_coef"] for row in ran.rows][:2] == coefs[-1][1:]
    rising, resting = coefs
    assert rising[0] == 0.02 and rising[0] < rising[1] < rising[2] < 0.025
    assert resting == [0.02] * 3, "it is not lowered below algo.entropy_coef"
    assert run(settings_of(algo__entropy_coef=0.02)).taken[0].entropy_coef == 0.02


def test_restored_entropy_coefficient_is_used_in_the_loss() -> None:
    adaptive = settings_of(algo__entropy_coef=0.02, algo__entropy_target=1.0)
    restored = replace(START, parts={"coefficients": {"kl_coef": 0.1, "entropy_coef": 0.09}})
    ran = run(adaptive, start=restored)
    assert_same_gradients(ran.taken[0].gradients, run(settings_of(algo__entropy_coef=0.09)).taken[0].gradients)
    with pytest.raises(AssertionError):
        assert_same_gradients(run(adaptive).taken[0].gradients, ran.taken[0].gradients)


def test_learning_rate_follows_the_step_and_the_rollbacks() -> None:
    config = settings_of(
        train__schedule="linear", train__steps=10, train__warmup_steps=0, train__schedule__final_share=0.0
    )
    alarms = {"rate_scale": 0.5, "rollbacks": 1, "watched_from": 4}
    ran = run(config, start=replace(START, step=4, parts={"alarms": alarms}), steps=2)
    assert [each.rate for each in ran.taken] == pytest.approx([1e-2 * 0.6 * 0.5, 1e-2 * 0.5 * 0.5])
    assert ran.loop.engine.published == [4, 5, 6], "tokens know the policy that sampled them"


def test_step_takes_the_time_of_publishing_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first publication, which may start the engine, is part of no step."""
    clock = [0.0]

    async def publish(engine: RecordingEngine, version: int, weights: WeightSource) -> None:
        clock[0] += 1000.0 + version

    monkeypatch.setattr(RecordingEngine, "publish", publish)
    monkeypatch.setattr("turnwise.training.loop.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    rows = run(settings_of(), steps=3).rows
    assert [row["time/publish_s"] for row in rows] == [0.0, 1001.0, 1002.0]
    assert [row["time/total_s"] // 1000 for row in rows] == [0.0, 1.0, 1.0]


def test_best_checkpoint_has_the_highest_success() -> None:
    ran = run(settings_of(), steps=4, successes=(0.2, 0.8, 0.5))
    assert [step for step, best in ran.saved if best] == [1, 2]
    assert ran.state.parts["validation"]["best_success"] == 0.8


def test_best_checkpoint_ignores_a_validation_without_scored_episodes() -> None:
    ran = run(settings_of(), steps=4, successes=(math.nan, 0.2, math.nan))
    assert [step for step, best in ran.saved if best] == [2]
    assert ran.state.parts["validation"]["best_success"] == 0.2


def test_best_checkpoint_replaces_a_recorded_nan() -> None:
    ran = run(
        settings_of(), start=replace(START, parts={"validation": {"best_success": math.nan}}), steps=2, successes=(0.1,)
    )
    assert ran.state.parts["validation"]["best_success"] == 0.1


def test_curriculum_measures_groups_that_were_filtered_out() -> None:
    config, curriculum = settings_of(**FILTER), Curriculum(pool=GROUPS)
    ran = run(config, curriculum=curriculum)
    source = TaskSource(mix=(EnvMixEntry(env="test"),), run_seed=0, curriculum=curriculum)
    assert set(ran.state.parts["curriculum"]) == {task_name("test", task.seed) for task in source.draw(0, GROUPS)}
    assert ran.rows[0]["rollout/kept_groups"] == 2


def test_restarted_learner_publishes_the_version_that_the_engine_had() -> None:
    """The weights may have been lost with the learner; replicas that are replaced need them again."""
    loop = run(settings_of(), steps=2).loop

    def lose(*_: Any) -> None:
        raise LearnerLost("killed")

    loop.learner.begin_step = lose  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(LearnerLost):
            asyncio.run(loop.run(replace(START, step=1)))
        loop.forget_published()
    assert loop.engine.published == [0, 1, 2, 1, 1]  # type: ignore[attr-defined]


def test_parts_start_anew_if_a_lost_learner_had_no_checkpoint() -> None:
    """A restart from step 0 does not continue with the counts and coefficients of the lost steps."""
    config = settings_of(algo__kl_coef=0.1, algo__kl_target=1e-6, algo__kl_estimator="k2")
    ran = run(config, steps=2, curriculum=Curriculum(pool=GROUPS))
    asyncio.run(ran.loop.begin(START))
    states = {part.name: part.state() for part in ran.loop.parts if part.name}
    assert states["coefficients"] == {"kl_coef": 0.1} and states["curriculum"] == {}
    assert ran.state.parts["coefficients"]["kl_coef"] > 0.1 and ran.state.parts["curriculum"]
