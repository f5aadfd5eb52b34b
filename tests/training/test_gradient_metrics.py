"""Measurements that cost passes: right numbers, and nothing is learnt by them."""

import math

import pytest
import torch

from episodes_for_tests import group_of, turn_of
from learners_for_tests import estimate_of, logprobs_of, make_learner, random_groups, settings_of, weights
from turnwise.core.trajectory import Group
from turnwise.run.build_learner import update_settings
from turnwise.training.diagnostics import gradient_metrics, mutual_information_metrics
from turnwise.training.learner import LocalLearner


def asked(prompt: list[int], said: list[int], index: int) -> Group:
    return group_of([[turn_of(prompt, said, extends=False)], [turn_of(prompt, said, extends=False)]], index)


def test_mutual_information_matches_a_plain_forward_pass() -> None:
    learner = make_learner(settings_of())
    groups = [asked([5, 6, 7], [8, 9], 0), asked([10, 11], [12, 13, 14], 1), asked([20, 21, 22], [3], 2)]
    found = mutual_information_metrics(groups, learner, prompts=3, micro_tokens=1000)
    turns = [group.trajectories[0].turns[0] for group in groups]
    table = torch.tensor([[likelihood(learner, x.context_ids, z.action_ids) for x in turns] for z in turns])
    expected = (table.diagonal() - (table.logsumexp(1) - math.log(3))).mean()
    assert found["diagnostics/mutual_information"] == pytest.approx(float(expected), abs=1e-4)
    assert found == pytest.approx(mutual_information_metrics(groups, learner, prompts=3, micro_tokens=5), abs=1e-4)
    assert mutual_information_metrics(groups[:1], learner, prompts=3, micro_tokens=1000) == {}


def likelihood(learner: LocalLearner, context: tuple[int, ...], said: tuple[int, ...]) -> float:
    trajectory = group_of([[turn_of(context, said, extends=False)]]).trajectories[0]
    return float(logprobs_of(learner, [trajectory])[0].sum())


def test_gradient_shares_sum_to_one_and_clear_gradients() -> None:
    config = settings_of()
    learner, groups = make_learner(config, moved=0.02), random_groups(groups=4)
    before, objective = weights(learner.model), learner.objective
    estimated = estimate_of(groups, learner, config)
    assert estimated is not None
    found = gradient_metrics(
        groups, estimated, learner, update_settings(config.algo, config.critic, config.train, config.seed), buckets=2
    )
    for term in ("task", "entropy", "kl"):
        assert sum(found[f"diagnostics/gradient_{term}_{bucket}"] for bucket in range(2)) == pytest.approx(1.0)
    after = weights(learner.model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.grad is None for parameter in learner.model.parameters())
    assert learner.objective is objective and learner.settings.kl_coef == config.algo.kl_coef


def test_task_gradient_comes_from_groups_with_differing_rewards() -> None:
    config = settings_of(algo__advantage="dr_grpo", algo__kl_coef=0.0, algo__entropy_coef=0.0)
    alike = group_of([[turn_of([3] * 9, [4, 5], extends=False, reward=1.0)] for _ in range(3)], 0)
    groups = [alike, random_groups(1, groups=1)[0]]
    learner = make_learner(config)
    estimated = estimate_of(groups, learner, config)
    assert estimated is not None
    found = gradient_metrics(
        groups, estimated, learner, update_settings(config.algo, config.critic, config.train, config.seed), buckets=2
    )
    assert found["diagnostics/gradient_task_0"] == 0.0 and found["diagnostics/gradient_task_1"] == 1.0


@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov"])
def test_gradient_metrics_count_selected_tokens_as_task(loss: str) -> None:
    """Also kl_cov's penalty, which does not vanish with the advantage."""
    config = settings_of(algo__loss=loss, algo__loss__share=0.5, algo__kl_coef=0.0, algo__entropy_coef=0.0)
    learner, groups = make_learner(config), random_groups(groups=2)
    estimated = estimate_of(groups, learner, config)
    assert estimated is not None
    found = gradient_metrics(
        groups, estimated, learner, update_settings(config.algo, config.critic, config.train, config.seed), buckets=1
    )
    assert found == {f"diagnostics/gradient_{term}_0": float(term == "task") for term in ("task", "entropy", "kl")}
