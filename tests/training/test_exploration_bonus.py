"""The bonus for varied actions in a training step."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from episodes_for_tests import group_of, turn_of
from learners_for_tests import estimate_of, make_learner, settings_of
from turnwise.algos.entropy import EntropyCoefficient
from turnwise.algos.exploration import COEF
from turnwise.core.trajectory import Group, Turn
from turnwise.data.decisions import find_decisions
from turnwise.run.build_learner import build_coefficients

PROMPT = [3] * 9


def acting(*actions: str, state: str | None = None, later: bool = False, reward: float = 0.0) -> Turn:
    """Two tokens that take these actions."""
    info: dict[str, object] = {"actions": list(actions)} | ({} if state is None else {"state": state})
    return turn_of([9] if later else PROMPT, [10, 11], extends=later, info=info, reward=reward)


def settings(**changes: Any) -> Any:
    return settings_of(**{"algo__action_entropy_target": 0.4} | changes)


def advantages_of(group: Group, config: Any, *others: Group) -> list[list[float]]:
    """Return the advantages of the first token of each turn."""
    learner = make_learner(config)
    estimated = estimate_of([group, *others], learner, config)
    assert estimated is not None
    starts = [sample.mask & ~sample.mask.roll(1) for sample in estimated.samples]
    return [advantages[start].tolist() for advantages, start in zip(estimated.advantages, starts, strict=True)]


def test_bonus_is_added_to_the_advantages_of_the_turn_that_acted() -> None:
    first, second = acting("Up"), acting("Left", state="s", later=True)
    other = acting("Right", state="s", later=True)
    failed = group_of([[first, second], [acting("UP"), other], [first, second]])
    mean = (2 * math.log(3 / 2) + math.log(3)) / 3
    common, rare = COEF * (math.log(3 / 2) - mean), COEF * (math.log(3) - mean)
    expected = [[0.0, common], [0.0, rare], [0.0, common]]
    assert advantages_of(failed, settings()) == [pytest.approx(row) for row in expected]
    assert advantages_of(failed, settings_of()) == [[0.0, 0.0]] * 3, "nothing to learn from without the bonus"
    won = group_of([[first, second], [first, replace(other, reward=1.0)]])
    both = zip(advantages_of(won, settings()), advantages_of(won, settings_of()), strict=True)
    assert [with_bonus[1] - without[1] for with_bonus, without in both] == pytest.approx([0.0, 0.0]), "one of each"


def test_actions_of_a_turn_are_summed_each_given_the_earlier_ones() -> None:
    group = group_of([[acting("Up", "Up")], [acting("Up", "Left")], [acting("Left", "Up")], [acting("Left", "Up")]])
    assert advantages_of(group, settings()) == [[0.0]] * 4, "one half of each action, and both given Up"
    uneven = group_of([[acting("Up", "Up")], [acting("Up", "Left")], [acting("Up", "Left")], [acting("Left", "Up")]])
    first, second = (math.log(4 / 3), math.log(4)), (math.log(3), math.log(3 / 2))
    means = (3 * first[0] + first[1]) / 4, (second[0] + 2 * second[1]) / 3
    expected = [first[0] - means[0] + second[0] - means[1], first[0] - means[0] + second[1] - means[1]]
    assert advantages_of(uneven, settings())[:2] == [[pytest.approx(COEF * value)] for value in expected]


def test_tasks_do_not_share_their_states() -> None:
    group, other = group_of([[acting("Up")], [acting("Up")]]), group_of([[acting("Left")]] * 3, index=1)
    assert advantages_of(group, settings(), other) == [[0.0]] * 5


def test_whether_a_further_action_follows_is_no_decision() -> None:
    group = group_of([[acting("Up", "Left")], [acting("up")], [acting("Down", "Left")]])
    decisions = find_decisions(group.trajectories)
    assert decisions.rows.tolist() == [0, 0, 1, 2, 2]
    states, actions = decisions.states.tolist(), decisions.actions.tolist()
    assert states[0] == states[2] == states[3] and len({states[0], states[1], states[4]}) == 3
    assert actions[0] == actions[2] != actions[3] and actions[1] == actions[4]


def test_invalid_turns_get_no_bonus() -> None:
    invalid = replace(acting("Up"), invalid=True)
    group = group_of([[invalid], [acting("Left")], [acting("Left")]])
    assert advantages_of(group, settings()) == [[0.0]] * 3
    assert len(find_decisions(group.trajectories).rows) == 2


def test_coefficient_rises_while_actions_are_less_varied_than_the_target() -> None:
    algo = settings().algo
    before = build_coefficients(algo)
    assert before.exploration == EntropyCoefficient(value=0.1, least=0.1, target=0.4, most=1.0)
    after = before.after(None, None, 4, None, action_entropy=0.3)
    assert after.numbers()["exploration_coef"] == pytest.approx(0.1 * math.exp(0.025))
    assert before.restore(after.numbers()) == after
    for _ in range(100):
        after = after.after(None, None, 4, None, action_entropy=0.0)
    assert after.numbers()["exploration_coef"] == 1.0
    assert before.after(None, None, 4, None, action_entropy=0.9) == before, "not below the first"
    assert "exploration_coef" not in build_coefficients(settings_of().algo).numbers()


def test_action_entropy_is_recorded() -> None:
    config = settings()
    estimated = estimate_of([group_of([[acting("Left")], [acting("Right")]])], make_learner(config), config)
    assert estimated is not None and estimated.metrics["action_entropy"] == pytest.approx(math.log(2))
    silent = estimate_of([group_of([[turn_of(PROMPT, [10], extends=False)]] * 2)], make_learner(config), config)
    assert silent is not None and "action_entropy" not in silent.metrics
    assert not torch.cat(silent.advantages).any()
