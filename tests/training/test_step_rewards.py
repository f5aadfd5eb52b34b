"""Rewards of a step on their way to advantages: combined, compared within their scope, penalties included."""

from dataclasses import replace
from statistics import fmean, stdev
from typing import Literal

import pytest
import torch

from episodes_for_tests import group_of, turn_of
from learners_for_tests import make_learner, settings_of
from turnwise.algos.normalisation import Mean
from turnwise.core.trajectory import Group, Trajectory
from turnwise.rewards.scoring import score_group
from turnwise.run.build_learner import build_coefficients, estimate_settings
from turnwise.training.estimators.on_policy import EstimateSettings, estimate
from turnwise.training.step import Estimate

PENALTY = 0.4


def played(index: int, *members: tuple[float, float, bool, float]) -> Group:
    """A group. Each member: its rewards at two turns, whether its first answer was invalid, and a second reward."""
    made = group_of(
        [
            [
                replace(turn_of([3] * 9, [4, 5 + number], extends=False, reward=first), invalid=invalid),
                turn_of([6], [7], reward=second),
            ]
            for number, (first, second, invalid, _) in enumerate(members)
        ],
        index,
    )
    scored = score_group(made, PENALTY)
    named = [
        replace(each, rewards={**each.rewards, "brief": brief})
        for each, (*_, brief) in zip(scored.trajectories, members, strict=True)
    ]
    return replace(scored, trajectories=tuple(named))


GROUPS = [
    played(0, (0.0, 1.0, False, 3.0), (0.5, 0.5, True, 1.0), (0.0, 0.0, False, 2.0)),
    played(1, (1.0, 0.0, True, 0.5), (0.0, 0.0, False, 0.0), (0.25, 0.5, True, 4.0)),
]
"""In both groups the penalty changes which members are the better ones."""


def advantages(groups: list[Group], **changes: object) -> list[float]:
    """One number per trajectory: the advantage is the return itself."""
    config = settings_of(algo__advantage="arpo", algo__kl_coef=0.0)
    settings: EstimateSettings = estimate_settings(config.algo, config.reward)
    settings = replace(settings, rewards=replace(settings.rewards, **changes))  # type: ignore[arg-type]
    found = estimate(groups, make_learner(config), settings, build_coefficients(config.algo))
    assert isinstance(found, Estimate)
    return [float(values[sample.mask][0]) for values, sample in zip(found.advantages, found.samples, strict=True)]


def standardised(values: list[float]) -> list[float]:
    return [(value - fmean(values)) / (stdev(values) + 1e-6) for value in values]


def env_of(trajectory: Trajectory) -> float:
    """Return the environment's reward minus the format penalty."""
    return sum(turn.reward - PENALTY * turn.invalid for turn in trajectory.turns)


def test_combined_rewards_keep_the_format_penalty_and_their_weights() -> None:
    total = []
    for group in GROUPS:
        env = standardised([env_of(each) for each in group.trajectories])
        brief = standardised([each.rewards["brief"] for each in group.trajectories])
        total += [2.0 * one + 0.5 * other for one, other in zip(env, brief, strict=True)]
    assert advantages(GROUPS, separate={"env": 2.0, "brief": 0.5}) == pytest.approx(standardised(total), abs=1e-4)


@pytest.mark.parametrize("over", ["group", "environment", "batch"])
def test_returns_are_normalised_within_their_scope(over: Literal["group", "environment", "batch"]) -> None:
    """Two groups of one environment, and a third of another."""
    other = replace(GROUPS[0], task=replace(GROUPS[0].task, env="other"))
    other = replace(other, trajectories=tuple(replace(each, task=other.task) for each in other.trajectories))
    groups = [*GROUPS, other]
    members = [(number, each) for number, group in enumerate(groups) for each in group.trajectories]
    expected = []
    for number, each in members:
        scope = [
            env_of(one)
            for index, one in members
            if over == "batch" or (index == number if over == "group" else one.task.env == each.task.env)
        ]
        expected.append(env_of(each) - fmean(scope))
    found = advantages(groups, normalise=Mean(over=over))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected))
