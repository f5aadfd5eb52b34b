"""Alarms on synthetic histories: each trouble is named once, and a healthy run is left in peace."""

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from turnwise.algos.alarms import Alarm, AlarmSettings, check_alarms
from turnwise.record.steps import StepRecord

Rows = list[dict[str, Any]]

LEVEL = {
    "rollout/reward_group_std": 0.4,
    "rollout/zero_std_groups": 0.1,
    "rollout/success": 0.3,
    "rollout/reward": 0.3,
    "rollout/response_tokens": 50.0,
    "train/entropy": 1.0,
    "train/grad_norm": 0.5,
    "diagnostics/mutual_information": 1.0,
}


def rows(count: int = 60, noise: float = 0.1, **courses: Callable[[int], float]) -> Rows:
    """A run whose numbers stay at LEVEL with some noise, but for those given as a function of the step."""
    chance = random.Random(0)
    by_key = {key.replace("__", "/"): course for key, course in courses.items()}
    found = []
    for step in range(1, count + 1):
        at = {key: by_key.get(key, lambda _, level=level: level)(step) for key, level in LEVEL.items()}
        noisy = {key: value * (1 + chance.uniform(-noise, noise)) for key, value in at.items()}
        found.append({"step": step, **noisy})
    return found


def alarms_of(history: Rows, settings: AlarmSettings | None = None) -> list[Alarm]:
    """Return the alarms of a run that adds its rows one by one."""
    active: frozenset[str] = frozenset()
    raised: list[Alarm] = []
    steps = [StepRecord.from_row(row) for row in history]
    for end in range(1, len(history) + 1):
        seen = check_alarms(steps[:end], active, settings)
        active = seen.active
        raised += seen.raised
    return raised


def kinds(alarms: Iterable[Alarm]) -> list[str]:
    return [alarm.kind for alarm in alarms]


def falling(start: float, end: float, first: int = 20, last: int = 40) -> Callable[[int], float]:
    def course(step: int) -> float:
        share = min(1.0, max(0.0, (step - first) / (last - first)))
        return start + (end - start) * share

    return course


def test_steady_run_raises_no_alarm() -> None:
    assert alarms_of(rows(noise=0.3)) == []


def test_solved_run_raises_no_alarm() -> None:
    """Spread and entropy fall to nothing since every episode succeeds, and answers become shorter."""
    history = rows(
        rollout__success=falling(0.2, 0.99, 10, 30),
        rollout__reward=falling(0.2, 0.99, 10, 30),
        rollout__reward_group_std=falling(0.4, 0.01, 20, 45),
        train__entropy=falling(1.0, 0.02, 20, 45),
        rollout__response_tokens=falling(50, 20),
        train__grad_norm=falling(0.5, 0.02, 20, 45),
    )
    assert alarms_of(history) == []


def test_alarms_use_the_reward_if_success_is_not_measured() -> None:
    """A reward that rose by more than its spread and stays up: members agree because they are right."""
    spread = falling(0.4, 0.01, 20, 40)
    risen = rows(
        rollout__success=lambda _: 0.0, rollout__reward=falling(0.0, 3.0, 10, 30), rollout__reward_group_std=spread
    )
    fallen = rows(rollout__success=lambda _: 0.0, rollout__reward=falling(1.0, 0.0), rollout__reward_group_std=spread)
    assert alarms_of(risen) == []
    assert kinds(alarms_of(fallen)) == ["echo_trap"]
    flat = rows(noise=0.0, rollout__success=lambda _: 0.0, rollout__reward_group_std=spread)
    assert kinds(alarms_of(flat)) == ["echo_trap"]


def test_echo_trap_is_reported_once_with_step_and_share() -> None:
    alarms = alarms_of(
        rows(noise=0.0, rollout__reward_group_std=falling(0.4, 0.01), rollout__success=falling(0.3, 0.1))
    )
    assert kinds(alarms) == ["echo_trap"]
    (alarm,) = alarms
    # the mean over five steps falls by 4.875 % of the start a step: 17.1 % at step 39, 12.25 % at step 40
    assert alarm.step == 40
    assert alarm.message == "reward std within groups fell to 12 % of its start: echo trap; step 40"


def test_echo_trap_is_measured_from_the_first_rise_of_spread() -> None:
    def course(step: int) -> float:
        return falling(0.05, 0.5, 1, 15)(step) if step < 30 else falling(0.5, 0.01, 30, 40)(step)

    (alarm,) = alarms_of(rows(noise=0.0, rollout__reward_group_std=course))
    assert "of its peak at step " in alarm.message


def test_echo_trap_message_includes_repetition() -> None:
    history = [row | {"rollout/repetition": 0.93} for row in rows(rollout__reward_group_std=falling(0.4, 0.01))]
    (alarm,) = alarms_of(history)
    assert ", members share 93 % of their text: echo trap" in alarm.message


def test_groups_without_spread_are_an_echo_trap_unless_success_was_gained() -> None:
    flat = {"rollout__zero_std_groups": falling(0.1, 0.9)}
    (alarm,) = alarms_of(rows(**flat))
    assert alarm.kind == "echo_trap"
    assert "all rewards are equal in " in alarm.message
    assert alarms_of(rows(**flat, rollout__success=falling(0.3, 0.8))) == []
    assert alarms_of(rows(rollout__zero_std_groups=lambda _: 0.9)) == [], "so it was from the start"
    assert alarms_of(rows(rollout__zero_std_groups=falling(0.1, 0.5))) == []


def test_reward_hacking_is_rising_reward_with_falling_success() -> None:
    courses = {
        "rollout__reward": falling(0.4, 0.9),
        "rollout__success": falling(0.3, 0.02),
        "rollout__reward_group_std": falling(0.4, 0.01),
    }
    (alarm,) = alarms_of(rows(**courses))
    assert alarm.kind == "reward_hacked"
    assert "while success fell from 31 % to" in alarm.message
    assert alarms_of(rows(**courses | {"rollout__success": falling(0.3, 0.8)}))[0].kind == "echo_trap"


@pytest.mark.parametrize(
    ("reward", "success"), [((0.4, 0.9), (0.3, 0.25)), ((0.4, 0.9), (0.0, 0.0)), ((0.4, 0.3), (0.3, 0.02))]
)
def test_reward_hacking_needs_both_a_rise_and_a_fall(reward: tuple[float, float], success: tuple[float, float]) -> None:
    """Rewards may lead up to a success that is not there yet, and both may fall together."""
    history = rows(rollout__reward=falling(*reward), rollout__success=falling(*success))
    assert "reward_hacked" not in kinds(alarms_of(history))


def test_entropy_collapse_raises_an_alarm() -> None:
    (alarm,) = alarms_of(rows(train__entropy=falling(1.0, 0.01)))
    assert alarm.kind == "entropy_collapse"
    assert "the policy no longer explores" in alarm.message


@pytest.mark.parametrize(
    ("norm", "words"), [(20.0, "times its usual"), (math.nan, "not finite"), (math.inf, "not finite")]
)
def test_gradient_spike_is_reported_at_its_step(norm: float, words: str) -> None:
    alarms = alarms_of(rows(train__grad_norm=lambda step: norm if step == 37 else 0.5))
    assert [(alarm.kind, alarm.step) for alarm in alarms] == [("gradient_spike", 37)]
    assert words in alarms[0].message


def test_gradient_that_was_never_finite_raises_an_alarm() -> None:
    alarms = alarms_of(rows(train__grad_norm=lambda step: math.nan))
    assert [(alarm.kind, alarm.step) for alarm in alarms] == [("gradient_spike", 1)]


def test_longer_answers_raise_an_alarm_only_without_progress() -> None:
    longer = falling(50, 400)
    (alarm,) = alarms_of(rows(rollout__response_tokens=longer))
    assert alarm.kind == "length_explosion" and "times as long" in alarm.message
    assert alarms_of(rows(rollout__response_tokens=longer, rollout__success=falling(0.3, 0.6))) == []


def rarely(history: Rows, key: str, every: int) -> Rows:
    return [{k: v for k, v in row.items() if k != key or row["step"] % every == 0} for row in history]


def test_template_collapse_is_low_information_at_high_entropy() -> None:
    key = "diagnostics/mutual_information"
    collapsed = rows(diagnostics__mutual_information=falling(1.0, 0.02))
    (alarm,) = alarms_of(rarely(collapsed, key, 5))
    assert alarm.kind == "template_collapse" and "template collapse" in alarm.message
    quiet = rows(diagnostics__mutual_information=falling(1.0, 0.02), train__entropy=falling(1.0, 0.3, 10, 20))
    assert alarms_of(rarely(quiet, key, 5)) == [], "low entropy is another trouble"
    nothing_to_tell = rows(diagnostics__mutual_information=falling(0.05, 0.0))
    assert alarms_of(rarely(nothing_to_tell, key, 5)) == []


def test_alarm_repeats_only_after_it_has_cleared() -> None:
    def twice(step: int) -> float:
        return 0.01 if 25 <= step < 40 or step >= 60 else 0.4

    alarms = alarms_of(rows(80, noise=0.0, rollout__reward_group_std=twice))
    assert kinds(alarms) == ["echo_trap", "echo_trap"]
    assert alarms[0].step < 40 and alarms[1].step >= 60


def test_alarm_has_hysteresis_at_its_bound() -> None:
    """0.15 of the start raises it and 0.225 clears it: in between it stays."""
    course = lambda step: 0.4 if step < 20 else 0.4 * (0.13 if step // 6 % 2 else 0.19)  # noqa: E731
    assert kinds(alarms_of(rows(80, noise=0.0, rollout__reward_group_std=course))) == ["echo_trap"]


def test_bounds_are_settings() -> None:
    history = rows(rollout__reward_group_std=falling(0.4, 0.2))
    assert alarms_of(history) == []
    assert kinds(alarms_of(history, AlarmSettings(reward_std_share=0.7))) == ["echo_trap"]


def test_short_histories_and_missing_metrics_raise_no_alarm() -> None:
    assert check_alarms([], frozenset({"echo_trap"})).active == {"echo_trap"}
    assert alarms_of([{"step": step} for step in range(30)]) == []
    assert alarms_of([{"step": step, "rollout/reward_group_std": None} for step in range(30)]) == []
    assert alarms_of(rows(9, rollout__reward_group_std=falling(0.4, 0.0, 2, 3))) == []


def test_entropy_of_actions_decides_where_it_is_measured() -> None:
    """That of tokens falls with the text around the answer, and may rise in it while all actions are the same."""
    varied, same = falling(1.0, 0.5), falling(1.0, 0.1)
    text = {"train__entropy": falling(1.0, 0.02)}
    assert kinds(alarms_of(rows(**text))) == ["entropy_collapse"]
    assert alarms_of(with_actions(rows(**text), varied)) == []
    (alarm,) = alarms_of(with_actions(rows(), same))
    assert alarm.kind == "entropy_collapse" and alarm.message.startswith("entropy of actions fell to 2")


def with_actions(history: Rows, course: Callable[[int], float]) -> Rows:
    return [row | {"rollout/action_entropy": course(row["step"])} for row in history]


def test_groups_that_never_had_spread_give_no_signal() -> None:
    always = {"rollout__zero_std_groups": lambda _: 1.0, "rollout__reward_group_std": lambda _: 0.0}
    (alarm,) = alarms_of(rows(noise=0.0, **always))
    assert (alarm.kind, alarm.step) == ("no_signal", 10)
    assert alarms_of(rows(noise=0.0, **always, rollout__success=lambda _: 0.95)) == [], "there is nothing left to learn"
    assert alarms_of(rows(noise=0.0, rollout__zero_std_groups=lambda _: 0.94)) == []


def test_turns_that_are_invalid_raise_an_alarm_that_says_if_they_are_cut() -> None:
    def raised(invalid: float, cut: float) -> list[str]:
        history = [row | {"rollout/invalid": invalid, "rollout/length_stops": cut} for row in rows()]
        return [alarm.message for alarm in alarms_of(history)]

    assert raised(0.89, 1.0) == raised(0.1, 1.0) == []
    assert raised(0.91, 0.0) == ["91 % of the turns are invalid; step 10"]
    assert raised(1.0, 1.0) == ["100 % of the turns are invalid, and 100 % are cut at rollout.max_new_tokens; step 10"]
