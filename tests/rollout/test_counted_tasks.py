"""Environments with a fixed number of tasks, such as rows of a file, draw each once before repeating any."""

from collections import Counter

import pytest

from turnwise.envs.seeds import seed_for
from turnwise.rollout.tasks import Curriculum, EnvMixEntry, TaskSource, task_name

SIZES = {"train": 10, "validation": 3, "test": 4}


def source(seed: int = 0) -> TaskSource:
    return TaskSource(mix=(EnvMixEntry(env="rows", sizes=SIZES),), run_seed=seed)


def places(step: int, count: int, start: int = 0, seed: int = 0) -> list[int]:
    return [task.seed for task in source(seed).draw(step, count, start)]


def test_training_draws_every_row_once_before_repeating() -> None:
    assert sorted(places(0, 10)) == list(range(10))
    assert sorted(places(3, 20)) == sorted([*range(10)] * 2)
    assert places(0, 10) != places(1, 10) and places(0, 10) != places(0, 10, seed=1)
    assert places(0, 4) + places(0, 6, start=4) == places(0, 10), "what is drawn later in a step goes on"


def test_evaluation_uses_each_row_at_most_once() -> None:
    assert len(source().first_tasks("test", 100)) == len({task.seed for task in source().first_tasks("test", 100)}) == 4
    assert len(source().first_tasks("validation", 2)) == 2


def chosen(train_rows: int, pool: int, seed: int = 0) -> TaskSource:
    curriculum = Curriculum(pool=pool)
    mix = (EnvMixEntry(env="rows", sizes={"train": train_rows, "test": 4}),)
    return TaskSource(mix=mix, run_seed=seed, curriculum=curriculum)


def drawn_rows(source: TaskSource, steps: int, count: int, **rates: float) -> Counter[int]:
    known = {task_name("rows", seed_for("train", int(row[1:]))): (100 * rate, 100.0) for row, rate in rates.items()}
    return Counter(task.seed for step in range(steps) for task in source.draw(step, count, success_counts=known))


def test_curriculum_draws_rows_by_measured_success() -> None:
    drawn = drawn_rows(chosen(10, pool=40), 1500, 2, r0=0.0, r1=0.5, r2=1.0)
    assert drawn[1] > 5 * drawn[0] > 0 and drawn[1] > 5 * drawn[2] > 0
    assert set(drawn) == set(range(10)), "a pool larger than the file holds every row"


def test_curriculum_pool_is_a_sample_of_the_rows() -> None:
    drawn = drawn_rows(chosen(1000, pool=20), 200, 8)
    assert len(drawn) == 20 and max(drawn) < 1000
    assert max(drawn) > 500, "not the first rows of the file"
    assert set(drawn_rows(chosen(1000, pool=20, seed=1), 200, 8)) != set(drawn)


@pytest.mark.parametrize(("train_rows", "pool"), [(3, 8), (8, 8), (30, 8)])
def test_curriculum_repeats_a_row_only_after_all_others(train_rows: int, pool: int) -> None:
    source, many = chosen(train_rows, pool), min(train_rows, pool)
    once = [task.seed for task in source.draw(4, many)]
    assert len(set(once)) == many
    twice = [task.seed for task in source.draw(4, 2 * many)]
    assert twice[:many] == once and sorted(twice[many:]) == sorted(once)
    assert [task.seed for task in source.draw(4, many, start=many)] == twice[many:]


def test_curriculum_leaves_held_out_rows_alone() -> None:
    assert [task.seed for task in chosen(1000, pool=20).first_tasks("test", 9)] == [
        seed_for("test", n) for n in range(4)
    ]
