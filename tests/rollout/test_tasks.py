from collections import Counter

import pytest

from turnwise.core.task import Task
from turnwise.core.trajectory import Group, Status, Trajectory
from turnwise.envs.seeds import SEEDS_PER_SPLIT, seed_for, split_of_seed
from turnwise.rollout.tasks import Curriculum, EnvMixEntry, TaskSource, task_name


def source(run_seed: int = 0, **others: object) -> TaskSource:
    mix = (EnvMixEntry(env="frozen_lake", params={"size": 4}),)
    return TaskSource(**{"mix": mix, "run_seed": run_seed, **others})  # type: ignore[arg-type]


MIXED = (EnvMixEntry(env="a", weight=1.0), EnvMixEntry(env="b", weight=3.0, params={"x": 1}))
POOL = Curriculum(pool=40)


def test_task_source_is_deterministic_per_step() -> None:
    for each in (source(), source(mix=MIXED), source(curriculum=POOL), source(mix=MIXED, curriculum=POOL)):
        assert each.draw(7, 5) == each.draw(7, 5)
        assert each.draw(7, 3) == each.draw(7, 5)[:3]
        assert each.draw(7, 2, start=3) == each.draw(7, 5)[3:]


def test_task_seeds_are_stable_across_releases_and_processes() -> None:
    """Written down once: a run resumed elsewhere draws the tasks that it would have drawn."""
    assert [task.seed for task in source().draw(0, 2)] == [568475608063, 881461424645]


def test_task_source_differs_by_step_and_run() -> None:
    drawn = [task.seed for seed in (0, 1) for step in range(50) for task in source(seed).draw(step, 8)]
    assert len(set(drawn)) == len(drawn)


def test_training_never_draws_a_held_out_task() -> None:
    drawn = [task for step in range(200) for task in source().draw(step, 8)]
    assert {(task.split, split_of_seed(task.seed)) for task in drawn} == {("train", "train")}
    held_out = [*source().first_tasks("validation", 256), *source().first_tasks("test", 256)]
    assert not {task.seed for task in drawn} & {task.seed for task in held_out}
    assert len({task.seed for task in held_out}) == 512


def test_evaluation_tasks_are_equal_for_all_runs() -> None:
    assert source(0).first_tasks("test", 10) == source(5).first_tasks("test", 10)
    assert [task.seed for task in source().first_tasks("test", 2)] == [2 * SEEDS_PER_SPLIT, 2 * SEEDS_PER_SPLIT + 1]
    assert all(task.split == "validation" == split_of_seed(task.seed) for task in source().first_tasks("validation", 9))


def test_environments_are_drawn_by_weight_and_evaluated_equally() -> None:
    drawn = Counter(task.env for step in range(100) for task in source(mix=MIXED).draw(step, 20))
    assert drawn["b"] / drawn["a"] == pytest.approx(3.0, rel=0.2)
    assert {tuple(task.params.items()) for task in source(mix=MIXED).draw(0, 20)} == {(), (("x", 1),)}
    held_out = source(mix=MIXED).first_tasks("test", 6)
    assert [(task.env, task.seed - 2 * SEEDS_PER_SPLIT) for task in held_out] == [
        (env, index) for index in range(3) for env in "ab"
    ]


def measured(**rates: float) -> dict[str, tuple[float, float]]:
    return {task_name("frozen_lake", seed_for("train", int(place[1:]))): (100 * p, 100) for place, p in rates.items()}


def test_curriculum_prefers_sometimes_solved_tasks_and_skips_none() -> None:
    known = measured(t0=0.0, t1=0.5, t2=1.0)
    drawn = Counter(
        task.seed for step in range(3000) for task in source(curriculum=POOL).draw(step, 4, success_counts=known)
    )
    never, half, always = (drawn[seed_for("train", place)] for place in range(3))
    assert half > 5 * never > 0 and half > 5 * always > 0
    assert set(drawn) == {seed_for("train", place) for place in range(40)}


def test_curriculum_draws_no_task_twice_per_step() -> None:
    assert len({task.seed for task in source(curriculum=POOL).draw(3, 40)}) == 40


def trajectory(seed: int, status: Status) -> Trajectory:
    return Trajectory(task=Task(env="x", seed=seed), member=0, attempt=0, turns=(), status=status, turn_rewards=())


def group(seed: int, *statuses: Status) -> Group:
    return Group(task=Task(env="x", seed=seed), trajectories=tuple(trajectory(seed, each) for each in statuses))


def test_curriculum_measurements_decay() -> None:
    won, lost = Status.SUCCEEDED, Status.FAILED
    first = POOL.update({}, [group(1, won, lost)])
    assert first == {"x:1": (1.0, 2.0)}
    assert POOL.update(first, [group(1, won, won)]) == {"x:1": (2.5, 3.0)}
    assert first == {"x:1": (1.0, 2.0)}


def test_curriculum_task_weight() -> None:
    assert POOL.weight({}, "x:1") == 1.0
    assert POOL.weight({"x:1": (0.0, 1000.0)}, "x:1") == 0.1 == POOL.weight({"x:1": (1000.0, 1000.0)}, "x:1")
    assert POOL.weight({"x:1": (1.0, 1.0)}, "x:1") == pytest.approx(4 * 2 / 9)
    metrics = POOL.metrics({"a": (0.0, 4.0), "b": (4.0, 4.0), "c": (2.0, 4.0), "d": (2.0, 4.0)})
    assert metrics == {"curriculum/measured": 4, "curriculum/solved": 0.25, "curriculum/unsolved": 0.25}
