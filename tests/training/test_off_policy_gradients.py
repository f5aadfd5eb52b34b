"""Off-policy policy gradients on small tasks where the gradient and the expected return are known exactly."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from episodes_for_tests import group_of, turn_of
from learners_for_tests import gradients, learn, logprobs_of, make_learner, settings_of
from models_for_tests import VOCABULARY, random_model
from turnwise.config.load import read_settings
from turnwise.core.trajectory import Group, Turn
from turnwise.recipes.presets import method_path
from turnwise.training.learner import LocalLearner

PROMPT = [5, 6, 7]
COUNTS = [1 + token % 3 for token in range(VOCABULARY)]
REWARDS = [float(token % 5 == 0) for token in range(VOCABULARY)]
WEIGHTED_BY = {
    "ratio": {"algo__old_logprobs": "sampler"},
    "correction": {
        "algo__old_logprobs": "learner",
        "algo__correction": "truncated",
        "algo__correction__bounds": (0.0, 1e9),
    },
}
PLAIN: dict[str, Any] = {"algo__kl_coef": 0.0, "algo__entropy_coef": 0.0, "algo__aggregation": "token-mean"}
UNCLIPPED = {"algo__loss__clip_low": 1.0, "algo__loss__clip_high": 1e9, "train__mini_batch": sum(COUNTS)}


def stored_group() -> Group:
    """Return one-turn episodes that have each token as often as its behaviour policy mu plays it.

    A mean over the group is then an expectation under mu, and weighted by pi / mu one under pi.
    """
    actions = [token for token, count in enumerate(COUNTS) for _ in range(count)]
    logprobs = [math.log(count / len(actions)) for count in COUNTS]
    return group_of(
        [
            [turn_of(PROMPT, [token], extends=False, reward=REWARDS[token], logprobs=[logprobs[token]])]
            for token in actions
        ]
    )


def exact_gradients(model: Any, group: Group) -> dict[str, torch.Tensor]:
    """Gradient of minus the expected return, in units of the group's standard deviation, as in GRPO."""
    policy = random_model("llama", "eager")
    policy.load_state_dict(model.state_dict())
    probabilities = policy(torch.tensor([PROMPT])).logits[0, -1].double().softmax(-1)
    returns = torch.tensor([each.total_reward for each in group.trajectories], dtype=torch.float64)
    (-(probabilities * torch.tensor(REWARDS)).sum() / returns.std()).backward()
    return {f"policy.{name}": each.grad for name, each in policy.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("weighted_by", WEIGHTED_BY)
def test_stored_group_has_the_gradient_of_the_expected_return(weighted_by: str) -> None:
    config, group = settings_of(**PLAIN, **UNCLIPPED, **WEIGHTED_BY[weighted_by]), stored_group()
    learner = make_learner(config, moved=0.05)
    expected = exact_gradients(learner.model, group)
    found = gradients(learner, [group], config, micro_tokens=40)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4 * float(tensor.abs().max()), rtol=1e-3, msg=name)


AGAIN = [8, 9]
FORMAT, GOOD, BAD = 20, 30, 31


def play(*choices: int) -> list[Turn]:
    """Return an episode of up to three turns, each the token FORMAT and a choice; GOOD wins and ends it."""
    return [
        turn_of(AGAIN if number else PROMPT, [FORMAT, choice], extends=number > 0, reward=float(choice == GOOD))
        for number, choice in enumerate(choices)
    ]


EPISODES = [[GOOD], [GOOD], [BAD, GOOD], [BAD, GOOD], *[[BAD, BAD, BAD]] * 4]
"""Half of them win. Those that lose are longer."""


def success_of(learner: LocalLearner) -> float:
    """Return the exact probability to win in three turns."""
    policy = random_model("llama", "eager")
    policy.load_state_dict(learner.model.state_dict())
    won, playing, context = 0.0, 1.0, list(PROMPT)
    for _ in range(3):
        with torch.no_grad():
            first, second = policy(torch.tensor([[*context, FORMAT]])).logits[0, -2:].softmax(-1)
        playing *= float(first[FORMAT])
        won += playing * float(second[GOOD])
        playing *= float(second[BAD])
        context += [FORMAT, BAD, *AGAIN]
    return won


@pytest.fixture(scope="module")
def behaviour() -> tuple[dict[str, torch.Tensor], Group]:
    """Return the weights of a policy that imitates EPISODES, and the episodes with its log-probabilities."""
    imitation = {"algo__advantage": "clone", "algo__loss": "reinforce", "train__learning_rate": 1e-2}
    config, group = settings_of(**PLAIN, **imitation), group_of([play(*each) for each in EPISODES])
    learner = make_learner(config)
    for _ in range(30):
        learn(learner, [group], config)
    stored = []
    for trajectory, logprobs in zip(group.trajectories, logprobs_of(learner, group.trajectories), strict=True):
        pairs = zip(trajectory.turns, logprobs.split(2), strict=True)
        stored.append([replace(turn, action_logprobs=tuple(part.tolist())) for turn, part in pairs])
    return copy.deepcopy(learner.model.state_dict()), group_of(stored)


def success_after(behaviour: tuple[dict[str, torch.Tensor], Group], **algo: Any) -> tuple[float, float]:
    """Return the success before and after 45 steps on the stored episodes."""
    config = settings_of(train__learning_rate=1e-3, **{f"algo__{name}": value for name, value in algo.items()})
    learner = make_learner(config)
    learner.model.load_state_dict(behaviour[0])
    before = success_of(learner)
    for _ in range(45):
        learn(learner, [behaviour[1]], config)
    return before, success_of(learner)


PRESET = read_settings(method_path("off_policy_grpo"))["algo"]
UNANCHORED = PRESET | {"old_logprobs": "learner", "correction": "truncated", "aggregation": "token-mean"}


def test_off_policy_grpo_improves_on_the_policy_that_played(behaviour: Any) -> None:
    before, after = success_after(behaviour, **PRESET)
    assert before == pytest.approx(0.5, abs=0.1)
    assert after > before + 0.1


def test_off_policy_gradient_without_a_clip_forgets_the_format(behaviour: Any) -> None:
    """The gradient is right, but the longer episodes that lose make FORMAT less likely, and no stored one shows it."""
    assert success_after(behaviour, **UNANCHORED)[1] < 0.1
