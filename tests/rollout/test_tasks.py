from turnwise.envs.seeds import RANGE, split_of
from turnwise.rollout.tasks import TaskSource


def source(run_seed: int = 0) -> TaskSource:
    return TaskSource(env="frozen_lake", params={"size": 4}, run_seed=run_seed)


def test_a_step_draws_the_same_tasks_whenever_it_is_asked() -> None:
    assert source().training(7, 5) == source().training(7, 5)
    assert source().training(7, 3) == source().training(7, 5)[:3]


def test_addresses_do_not_change_between_releases_and_processes() -> None:
    """Written down once: a run resumed elsewhere draws the tasks that it would have drawn."""
    assert [task.seed for task in source().training(0, 2)] == [568475608063, 881461424645]


def test_other_steps_and_other_runs_draw_other_tasks() -> None:
    drawn = [task.seed for seed in (0, 1) for step in range(50) for task in source(seed).training(step, 8)]
    assert len(set(drawn)) == len(drawn)


def test_training_never_draws_a_held_out_task() -> None:
    drawn = [task for step in range(200) for task in source().training(step, 8)]
    assert {(task.split, split_of(task.seed)) for task in drawn} == {("train", "train")}
    held_out = [*source().held_out("validation", 256), *source().held_out("test", 256)]
    assert not {task.seed for task in drawn} & {task.seed for task in held_out}
    assert len({task.seed for task in held_out}) == 512


def test_every_run_is_evaluated_on_the_same_tasks() -> None:
    assert source(0).held_out("test", 10) == source(5).held_out("test", 10)
    assert [task.seed for task in source().held_out("test", 2)] == [2 * RANGE, 2 * RANGE + 1]
    assert all(task.split == "validation" == split_of(task.seed) for task in source().held_out("validation", 9))
