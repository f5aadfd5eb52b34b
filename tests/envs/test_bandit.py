from collections import Counter

import pytest

from turnwise.core.errors import UserError
from turnwise.envs.answers import format_answer
from turnwise.envs.bandit.env import NAMES, Bandit
from turnwise.envs.registry import load_spec


def choose(started, steps, index, arm=None, member=0, **params):
    runner = started("bandit", index, member=member, **params)
    (result,) = steps(runner, [format_answer([arm or runner.env.solve()[0]])])
    return runner, result


def test_training_and_test_names_are_disjoint():
    train = {name for pair in NAMES["train"] for name in pair}
    test = {name for pair in NAMES["test"] for name in pair}
    assert not train & test and len(train) == 2 * len(NAMES["train"]) and len(NAMES["train"]) >= 3


@pytest.mark.parametrize("names", ["train", "test"])
def test_names_come_from_the_chosen_list_in_both_orders(started, names):
    seen = Counter(started("bandit", index, names=names).opening.messages[1].content for index in range(160))
    pairs = NAMES[names]
    assert set(seen) == {f"{a}, {b}" for a, b in pairs} | {f"{b}, {a}" for a, b in pairs}
    assert min(seen.values()) >= 8


def test_high_arm_has_the_bold_name_unless_reversed(started):
    bold = {pair[1] for pair in NAMES["train"]}
    safe = {pair[0] for pair in NAMES["train"]}
    for index in range(20):
        assert started("bandit", index).env.solve()[0] in bold
        assert started("bandit", index, reversed=True).env.solve()[0] in safe


def test_high_arm_pays_a_quarter_of_the_time_and_is_success(started, steps):
    results = [choose(started, steps, index=0, member=member)[1] for member in range(400)]
    assert all(result.success and result.terminated for result in results)
    assert {result.reward for result in results} == {0.0, 1.0}
    assert 70 <= sum(result.reward for result in results) <= 130, "members meet independent luck of 0.25"


def test_low_arm_always_pays_and_is_not_success(started, steps):
    for index in range(20):
        runner = started("bandit", index)
        low = next(arm for arm in runner.env.arms if arm != runner.env.high_arm)
        _, result = choose(started, steps, index, arm=low)
        assert (result.reward, result.success, result.terminated) == (0.1, False, True)


def test_arms_are_matched_case_insensitively(started, steps):
    name = started("bandit", 0).env.arms[0]
    assert not choose(started, steps, 0, arm=name.upper())[1].invalid
    for wrong in (name + "s", "0", f"{name} "[:-2]):
        _, result = choose(started, steps, 0, arm=wrong)
        assert result.invalid and result.truncated and result.reward == 0.0


def test_prompt_states_rewards_and_not_the_episode(started):
    prompts = {started("bandit", index).opening.messages[0].content for index in range(20)}
    assert len(prompts) == 1
    assert "One pays 0.1 always. One pays 1 with chance 0.25." in prompts.pop()
    other = started("bandit", 0, low=0.2, high=3.0, chance=0.5).opening.messages[0].content
    assert "One pays 0.2 always. One pays 3 with chance 0.5." in other


def test_prompt_does_not_reveal_reversed_names(started):
    prompts = {started("bandit", 0, reversed=mislead).opening.messages[0].content for mislead in (True, False)}
    assert len(prompts) == 1


def test_picture_shows_the_arms(started):
    env = started("bandit", 0).env
    assert isinstance(env, Bandit) and env.draw().rows == (env.arms,)


@pytest.mark.parametrize(
    "params", [{"low": 0.25}, {"low": 0.3}, {"high": 0.2}, {"chance": 0.1}, {"low": 0.0, "high": -1}]
)
def test_low_arm_that_pays_more_is_refused(params: dict[str, float]):
    with pytest.raises(UserError, match=r"the low arm pays .*: lower low, or raise high or chance"):
        load_spec("bandit").check_params(params)
