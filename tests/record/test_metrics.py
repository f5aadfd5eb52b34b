import math
from dataclasses import replace
from typing import Any

import pytest

from turnwise.core.messages import assistant
from turnwise.core.task import Task
from turnwise.core.trajectory import Group, Status, Stop, Trajectory, Turn
from turnwise.record.metrics import rollout_metrics
from turnwise.record.steps import EpisodeSource, StepRecord, finite_number
from turnwise.report.metric_charts import metric_points

TASK = Task(env="bandit", seed=1)


def turn(tokens: int = 4, *, context: int = 10, invalid: bool = False, stop: Stop = Stop.EOS) -> Turn:
    return Turn(
        context_ids=(0,) * context,
        extends=True,
        action_ids=(1,) * tokens,
        action_logprobs=(-1.0,) * tokens,
        temperature=1.0,
        spans=(),
        message=assistant(""),
        stop=stop,
        reward=0.0,
        invalid=invalid,
    )


def member(status: Status, reward: float, *turns: Turn) -> Trajectory:
    turns = turns or (turn(),)
    return Trajectory(
        task=TASK,
        member=0,
        attempt=0,
        turns=turns,
        status=status,
        turn_rewards=(0.0,) * (len(turns) - 1) + (reward,),
        rewards={"env": reward, "format": 0.0},
    )


def group(*members: Trajectory) -> Group:
    return Group(task=TASK, trajectories=members)


def test_rollout_metrics_of_two_groups() -> None:
    metrics = rollout_metrics(
        [
            group(
                member(Status.SUCCEEDED, 1.0, turn(4), turn(2, invalid=True)),
                member(Status.FAILED, 0.0, turn(6, stop=Stop.LENGTH)),
            ),
            group(member(Status.TRUNCATED_TOKENS, 0.5), member(Status.TRUNCATED_TURNS, 0.5)),
        ]
    )
    expected = {
        "rollout/groups": 2,
        "rollout/episodes": 4,
        "rollout/success": 0.25,
        "rollout/reward": 0.5,
        "rollout/reward_std": math.sqrt(0.125),
        "reward/env": 0.5,
        "reward/format": 0.0,
        "rollout/reward_group_std": 0.25,
        "rollout/zero_std_groups": 0.5,
        "rollout/repetition": 1.0,
        "rollout/copies": 1.0,
        "rollout/sampled_tokens": 20,
        "rollout/context_tokens": 50,
        "rollout/turns": 1.25,
        "rollout/response_tokens": 5.0,
        "rollout/turn_tokens": 4.0,
        "rollout/invalid": 0.2,
        "rollout/length_stops": 0.2,
        "rollout/failed": 0.25,
        "rollout/truncated_turns": 0.25,
        "rollout/truncated_tokens": 0.25,
        "rollout/truncated_time": 0.0,
    }
    assert metrics == pytest.approx(expected)


def acting(*actions: str, state: str | None = None) -> Turn:
    return replace(turn(), info={"actions": list(actions)} | ({} if state is None else {"state": state}))


def action_entropy(*members: tuple[Turn, ...]) -> float | None:
    """Return the metric of a group, beside a group of one, which cannot be compared."""
    turns = [member(Status.FAILED, 0.0, *turns) for turns in members]
    alone = group(member(Status.FAILED, 0.0, acting("Up"), acting("Down")))
    return rollout_metrics([group(*turns), alone]).get("rollout/action_entropy")


def test_action_entropy_ignores_spelling() -> None:
    assert action_entropy((acting("Up"),), (acting("UP"),), (acting("up"),)) == 0.0
    assert action_entropy((acting("Up"),), (acting("DOWN"),)) == pytest.approx(math.log(2))
    three_to_one = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)
    assert action_entropy(*[(acting("Up"),)] * 3, (acting("Up", "Up"),)) == pytest.approx(three_to_one)


def test_action_entropy_compares_actions_in_the_same_state() -> None:
    """Two members meet in state b, at different turns; the others' later states are visited once."""
    members = (
        (acting("Up", state="a"), acting("Left", state="b")),
        (acting("Up", state="a"), acting("Up", state="c"), acting("Right", state="b")),
        (acting("Up", state="a"), acting("Down", state="d")),
    )
    assert action_entropy(*members) == pytest.approx(2 * math.log(2) / 5)


def test_action_entropy_without_states_compares_first_turns() -> None:
    assert action_entropy((acting("Up"), acting("Left")), (acting("Up"), acting("Right"))) == 0.0
    assert action_entropy((turn(),), (turn(),)) is None, "an environment without actions"
    assert action_entropy((replace(turn(), info={"actions": 3}),), (acting("Up"),)) is None


def test_rollout_metrics_take_success_from_the_status() -> None:
    won = member(Status.SUCCEEDED, -3.0)
    lost = member(Status.FAILED, 100.0)
    assert rollout_metrics([group(won, lost)])["rollout/success"] == 0.5


def test_rollout_metrics_count_a_missing_named_reward_as_0() -> None:
    answered = replace(member(Status.FAILED, 0.5), rewards={"env": 0.5, "format": 0.0, "judge": 0.5})
    silent = member(Status.TRUNCATED_TURNS, 0.0)
    some, none = rollout_metrics([group(answered, silent)]), rollout_metrics([group(silent, silent)])
    assert some["reward/judge"] == 0.25 and "reward/judge" not in none
    steps = [StepRecord.of(step, EpisodeSource.PLAYED, values) for step, values in enumerate((some, none, some), 1)]
    assert metric_points(steps, "reward/judge") == [(1, 0.25), (3, 0.25)], "not drawn as 0"


def test_rollout_metrics_of_no_groups_have_no_nan() -> None:
    metrics = rollout_metrics([])
    assert metrics["rollout/episodes"] == 0
    assert "rollout/success" not in metrics
    assert all(math.isfinite(value) for value in metrics.values())


def test_rollout_metrics_ignore_float_noise_in_the_spread() -> None:
    same = [member(Status.FAILED, 0.1) for _ in range(3)]  # the mean of three 0.1 is not 0.1
    assert rollout_metrics([group(*same)])["rollout/zero_std_groups"] == 1.0


@pytest.mark.parametrize("value", [None, "NaN", "1", True, float("nan"), float("inf"), 10**400, [1]])
def test_finite_number_is_none_for_other_values(value: Any) -> None:
    assert finite_number(value) is None
