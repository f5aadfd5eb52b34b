"""The bonus for varied actions: by hand, and as the gradient of the entropy of actions."""

import math

import pytest
import torch

from turnwise.algos.exploration import surprise


def bonus_of(groups: list[int], states: list[int], actions: list[int]) -> tuple[list[float], float | None]:
    bonus, entropy = surprise(torch.tensor(groups), torch.tensor(states), torch.tensor(actions))
    return bonus.tolist(), entropy


def test_rare_actions_get_more_than_common_ones() -> None:
    bonus, entropy = bonus_of([0] * 4, [0] * 4, [7, 7, 7, 2])
    mean = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)
    assert bonus == pytest.approx([math.log(4 / 3) - mean] * 3 + [math.log(4) - mean])
    assert bonus[3] > 0 > bonus[0] and sum(bonus) == pytest.approx(0)
    assert entropy == pytest.approx(mean)


def test_actions_are_compared_within_group_and_state() -> None:
    bonus, entropy = bonus_of([0, 0, 1, 1, 0, 1], [5, 5, 5, 5, 6, 6], [1, 2, 1, 1, 2, 2])
    assert bonus == pytest.approx([0.0] * 6), "two of each action, one action, and states visited once"
    assert entropy == pytest.approx(math.log(2) / 2), "a state visited once tells nothing of the entropy"
    assert bonus_of([0, 1], [0, 0], [1, 2]) == ([0.0, 0.0], None)


def test_bonus_is_the_gradient_of_the_entropy_of_actions() -> None:
    """The policy gradient with the bonus as the advantage, over actions in the frequencies of the policy."""
    counts = [5, 2, 1]
    logits = torch.tensor([count / 8 for count in counts], dtype=torch.float64).log().requires_grad_()
    probs = logits.softmax(dim=0)
    entropy = -(probs * probs.log()).sum()
    (expected,) = torch.autograd.grad(entropy, logits)
    actions = torch.tensor([action for action, count in enumerate(counts) for _ in range(count)])
    bonus, measured = surprise(torch.zeros_like(actions), torch.zeros_like(actions), actions)
    (gradient,) = torch.autograd.grad((bonus * logits.log_softmax(dim=0)[actions]).mean(), logits)
    torch.testing.assert_close(gradient, expected)
    assert measured == pytest.approx(float(entropy.detach()))
