"""Where tasks are counted, as rows of a file are, each is drawn once before any comes again."""

from turnwise.rollout.tasks import TaskSource, World

SIZES = {"train": 10, "validation": 3, "test": 4}


def source(seed: int = 0) -> TaskSource:
    return TaskSource(worlds=(World(env="rows", sizes=SIZES),), run_seed=seed)


def places(step: int, count: int, start: int = 0, seed: int = 0) -> list[int]:
    return [task.seed for task in source(seed).training(step, count, start)]


def test_a_step_meets_every_row_once_before_any_twice() -> None:
    assert sorted(places(0, 10)) == list(range(10))
    assert sorted(places(3, 20)) == sorted([*range(10)] * 2)
    assert places(0, 10) != places(1, 10) and places(0, 10) != places(0, 10, seed=1)
    assert places(0, 4) + places(0, 6, start=4) == places(0, 10), "what is drawn later in a step goes on"


def test_an_evaluation_plays_each_row_once_however_many_are_asked_for() -> None:
    assert len(source().held_out("test", 100)) == len({task.seed for task in source().held_out("test", 100)}) == 4
    assert len(source().held_out("validation", 2)) == 2
