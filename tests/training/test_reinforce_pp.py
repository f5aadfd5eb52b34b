"""REINFORCE++: the outcome at the last token less beta kl_t at every token, summed from each token on, whitened."""

import math
from typing import Any

import pytest

from episodes_for_tests import group_of, turn_of
from learners_for_tests import estimate_of, make_learner, settings_of
from turnwise.config.schema import Config
from turnwise.core.trajectory import Group
from turnwise.run.build_learner import build_learner, estimate_settings, kl_estimator, reward_placement
from turnwise.run.configure import configure
from turnwise.training.step import Estimate

BETA = 0.25


def two_turns() -> Group:
    """Rewards on the way, in turns of two and one tokens and of one and two."""
    return group_of(
        [
            [turn_of([3] * 9, [4, 5], extends=False, reward=1.0), turn_of([6], [7], reward=2.0)],
            [turn_of([3] * 9, [8], extends=False, reward=0.5), turn_of([6], [9, 10], reward=-1.0)],
        ]
    )


def estimated(**settings: Any) -> Estimate:
    config = settings_of(algo__advantage="reinforce_pp", algo__kl_coef=BETA, **settings)
    found = estimate_of([two_turns()], make_learner(config, moved=0.05), config)
    assert found is not None and found.ref_logprobs is not None
    return found


def by_loops(found: Estimate, gamma: float) -> list[list[float]]:
    """The formula, token by token, from the sampler's and the reference's log-probabilities."""
    assert found.ref_logprobs is not None
    rows = []
    for trajectory, sample, reference in zip(found.trajectories, found.samples, found.ref_logprobs, strict=True):
        own, other = sample.sampler_logprobs[sample.mask].tolist(), reference[sample.mask].tolist()
        rewards = [-BETA * (a - b) for a, b in zip(own, other, strict=True)]
        rewards[-1] += sum(turn.reward for turn in trajectory.turns)
        row, later = [], 0.0
        for reward in reversed(rewards):
            later = reward + gamma * later
            row.append(later)
        rows.append(row[::-1])
    tokens = [number for row in rows for number in row]
    mean = sum(tokens) / len(tokens)
    std = math.sqrt(sum((number - mean) ** 2 for number in tokens) / (len(tokens) - 1))
    return [[(number - mean) / std for number in row] for row in rows]


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_reinforce_pp_is_the_outcome_minus_kl_whitened_over_tokens(gamma: float) -> None:
    found = estimated(algo__advantage__gamma=gamma)
    rows = [
        advantages[sample.mask].tolist() for sample, advantages in zip(found.samples, found.advantages, strict=True)
    ]
    assert rows == [pytest.approx(row, abs=1e-4) for row in by_loops(found, gamma)]


def choices(config: Config) -> tuple[str, bool, str]:
    return reward_placement(config.algo), config.algo.kl_is_reward, kl_estimator(config.algo)


def test_reinforce_pp_has_its_kl_in_the_reward_only() -> None:
    config = settings_of(algo__advantage="reinforce_pp")
    learner = make_learner(config)
    assert choices(config) == ("trajectory", True, "k1") and learner.settings.kl_coef == 0.0
    assert estimate_settings(config.algo, config.reward).kl_in_reward is not None
    asked = settings_of(algo__advantage="reinforce_pp", algo__placement="turn", algo__kl_in="loss")
    assert choices(asked) == ("turn", False, "k3")
    assert build_learner(asked.algo, asked.critic, asked.train, learner.model).settings.kl_coef == 0.1
    assert choices(settings_of()) == ("turn", False, "k3")


def test_preset_reinforce_pp_is_the_published_method() -> None:
    config = configure("frozen_lake", overrides=[("algo.preset", "reinforce_pp")])
    assert choices(config) == ("trajectory", True, "k1")
    assert (config.algo.advantage.gamma, config.algo.entropy_coef, config.algo.kl_coef > 0) == (1.0, 0.0, True)
