"""Diagnostics of a step: the thinking alone is scored, and each term's gradient is its own."""

import math
from dataclasses import replace

import pytest
import torch
from step_by_hand_for_tests import plain_model, tokens_of

from episodes_for_tests import group_of, turn_of
from learners_for_tests import estimate_of, make_learner, random_groups, settings_of
from turnwise.core.trajectory import Group, Span
from turnwise.run.build_learner import update_settings
from turnwise.training.diagnostics import gradient_metrics, mutual_information_metrics
from turnwise.training.objective import SamplerMismatch


def thinking(index: int, prompt: list[int], thought: list[int], answer: list[int]) -> Group:
    span = Span(name="think", start=0, end=len(thought))
    turn = turn_of(prompt, [*thought, *answer], extends=False, spans=(span,))
    return group_of([[turn], [turn]], index)


def test_mutual_information_uses_the_thinking_only() -> None:
    groups = [
        thinking(0, [5, 6, 7], [8, 9], [30, 31, 32]),
        thinking(1, [10, 11], [12, 13, 14], [40]),
        thinking(2, [20, 21, 22, 23], [24], [50, 51]),
    ]
    learner = make_learner(settings_of(), moved=0.05)
    plain = plain_model(learner.model)
    turns = [group.trajectories[0].turns[0] for group in groups]

    def likelihood(prompt: tuple[int, ...], thought: tuple[int, ...]) -> float:
        alone = group_of([[turn_of(prompt, thought, extends=False)]])
        return sum(token.logprob.item() for token in tokens_of([alone], plain))

    table = torch.tensor(
        [[likelihood(asked.context_ids, said.action_ids[: said.spans[0].end]) for asked in turns] for said in turns]
    )
    marginal = table.logsumexp(1) - math.log(3)
    found = mutual_information_metrics(groups, learner, prompts=3, micro_tokens=1000)
    assert found["diagnostics/mutual_information"] == pytest.approx(
        float((table.diagonal() - marginal).mean()), abs=1e-4
    )
    assert found["diagnostics/reasoning_entropy"] == pytest.approx(-float(marginal.mean()), abs=1e-4)


def test_gradient_shares_of_entropy_and_kl_do_not_depend_on_rewards() -> None:
    config = settings_of(algo__advantage="dr_grpo", algo__entropy_coef=0.1, algo__kl_coef=0.1)

    def shares(scale: tuple[float, float]) -> dict[str, float]:
        groups = [_paid(group, times) for group, times in zip(random_groups(), scale, strict=True)]
        learner = make_learner(config, moved=0.02)
        estimated = estimate_of(groups, learner, config)
        assert estimated is not None
        return gradient_metrics(
            groups,
            estimated,
            learner,
            update_settings(config.algo, config.critic, config.train, config.seed),
            buckets=2,
        )

    # The order of the groups by the spread of their rewards is the same in both.
    one, other = shares((1.0, 2.0)), shares((1.0, 8.0))
    assert one["diagnostics/gradient_task_0"] != pytest.approx(other["diagnostics/gradient_task_0"], rel=0.05)
    for term in ("entropy", "kl"):
        name = f"diagnostics/gradient_{term}_0"
        assert one[name] == pytest.approx(other[name], rel=1e-3)


def _paid(group: Group, times: float) -> Group:
    members = [
        replace(each, turn_rewards=tuple(times * reward for reward in each.turn_rewards)) for each in group.trajectories
    ]
    return replace(group, trajectories=tuple(members))


def test_mismatch_percentile_is_the_ninety_ninth_of_a_hundred() -> None:
    mismatch = SamplerMismatch()
    mismatch.add(torch.arange(1, 101) / 100, torch.zeros(100), [100])
    assert mismatch.take()["mismatch_p99"] == pytest.approx(0.99)
