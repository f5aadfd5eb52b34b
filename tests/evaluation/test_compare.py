import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from episodes_for_tests import turn_of
from turnwise.core.task import Task
from turnwise.core.trajectory import Status, Trajectory
from turnwise.envs.seeds import seed_for
from turnwise.evaluation.compare import (
    AGRESTI_MIN,
    BOOTSTRAP,
    MCNEMAR,
    SIGN_FLIP,
    agresti_min_interval,
    compare_all,
    compare_paired,
    mcnemar_test,
    sign_flip_test,
)
from turnwise.evaluation.episodes import Evaluation, reported_ks


def played(task: int, success: bool, member: int = 0, reward: float | None = None) -> Trajectory:
    turns = [turn_of([1, 2], [3, 4, 5]), turn_of([6], [7], reward=float(success) if reward is None else reward)]
    return Trajectory(
        task=Task(env="test", seed=seed_for("test", task), split="test"),
        member=member,
        attempt=0,
        turns=tuple(turns),
        status=Status.SUCCEEDED if success else Status.FAILED,
        turn_rewards=tuple(turn.reward for turn in turns),
    )


def once(outcomes: Sequence[bool], errors: int = 0) -> Evaluation:
    return Evaluation(trajectories=tuple(played(n, each) for n, each in enumerate(outcomes)), dropped=errors)


def several(tasks: Sequence[Sequence[bool]]) -> Evaluation:
    return Evaluation(
        trajectories=tuple(
            played(n, each, member) for n, tries in enumerate(tasks) for member, each in enumerate(tries)
        ),
        dropped=0,
    )


def test_compare_subtracts_the_first_agent_from_the_second() -> None:
    first, second = once([True] * 2 + [False] * 8), once([False] * 1 + [True] * 6 + [False] * 3)
    found = compare_paired(first, second)
    assert found is not None
    assert (found.tasks, found.success) == (10, pytest.approx(0.4))
    assert (found.p, found.test) == (pytest.approx(mcnemar_test(1, 5)), MCNEMAR)
    assert ((found.low, found.high), found.interval) == (pytest.approx(agresti_min_interval(1, 5, 10)), AGRESTI_MIN)
    assert found.reward == pytest.approx(0.4)
    assert found.reward_p == pytest.approx(sign_flip_test([-1] + [1] * 5))
    back = compare_paired(second, first)
    assert back is not None
    assert (back.success, back.p) == (pytest.approx(-0.4), pytest.approx(found.p))
    assert (back.low, back.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_compare_pairs_several_tries_by_task() -> None:
    first = several([[True, False], [False, False], [True, True]])
    second = several([[True, True], [True, False], [True, True]])
    found = compare_paired(first, second)
    assert found is not None
    assert found.success == pytest.approx((0.5 + 0.5 + 0.0) / 3)
    assert (found.p, found.test, found.interval) == (pytest.approx(0.5), SIGN_FLIP, BOOTSTRAP)  # 2 of 4 signs


def test_compare_uses_only_tasks_of_both_agents() -> None:
    first, second = once([True, False, False]), once([False, True, False, True, True])
    found = compare_paired(first, second)
    assert found is not None
    assert (found.tasks, found.success) == (3, 0.0)
    others = Evaluation(trajectories=(played(7, True),), dropped=0)
    assert compare_paired(first, others) is None


def test_compare_corrects_p_values_for_several_comparisons() -> None:
    base, better, best = once([False] * 12), once([True] * 6 + [False] * 6), once([True] * 12)
    alone = [compare_paired(base, other) for other in (better, best)]
    together = compare_all([base, better, best])
    assert [pair.success for pair in together if pair] == [0.5, 1.0]
    assert together[0] is not None and alone[0] is not None and together[0].p == pytest.approx(alone[0].p)
    assert together[1] is not None and alone[1] is not None and together[1].p == pytest.approx(2 * alone[1].p)
    assert compare_all([base]) == []
    strange = Evaluation(trajectories=(played(99, True),), dropped=0)
    mixed = compare_all([base, strange, best])
    assert mixed[0] is None
    assert mixed[1] is not None and alone[1] is not None and mixed[1].p == pytest.approx(alone[1].p)


def test_metrics_of_several_tries_include_pass_at_k() -> None:
    found = several([[True, False, False, False], [False] * 4, [True] * 4]).metrics()
    assert found["success"] == pytest.approx(5 / 12)
    assert found["pass_at_2"] == pytest.approx((0.5 + 0 + 1) / 3)
    assert found["pass_at_4"] == pytest.approx(2 / 3)
    assert "pass_at_3" not in found
    assert (found["episodes"], found["turns"], found["sampled_tokens"]) == (12, 2, 4)


def test_metrics_drop_a_task_with_a_missing_try_from_the_largest_k_only() -> None:
    found = several([[True, False], [True]])
    assert (found.success, found.pass_at(2)) == (0.75, 1.0)
    assert math.isnan(found.pass_at(3))


def test_metrics_of_one_try_have_no_pass_at_k() -> None:
    assert not any("pass" in name for name in once([True, False]).metrics())
    assert [reported_ks(tries) for tries in (1, 2, 3, 8, 10)] == [[], [2], [2, 3], [2, 4, 8], [2, 4, 8, 10]]


def test_equal_seeds_of_two_environments_are_two_tasks() -> None:
    here = played(0, True)
    there = replace(here, task=replace(here.task, env="other"), status=Status.FAILED)
    mixed = Evaluation(trajectories=(here, there), dropped=0)
    assert (mixed.tries, mixed.success) == (1, 0.5)
