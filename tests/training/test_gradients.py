"""The result of an optimizer step does not depend on micro-batches, packing or order."""

import os
from dataclasses import replace
from itertools import cycle, product

import pytest
import torch
from torch import Tensor

from episodes_for_tests import group_of, turn_of
from learners_for_tests import CRITICS, estimate_of, gradients, learn, make_learner, random_groups, settings_of, weights
from models_for_tests import random_model
from turnwise.algos.losses import AGGREGATIONS
from turnwise.core.trajectory import Group
from turnwise.training.learner import LocalLearner


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """To the rounding of float32 sums, whose error goes with the largest terms."""
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, atol=2e-5 * tensor.abs().max().item(), rtol=1e-4, msg=name)


def reordered(groups: list[Group]) -> list[Group]:
    return [replace(group, trajectories=group.trajectories[::-1]) for group in groups[::-1]]


ALL_PAIRS = list(product(CRITICS, AGGREGATIONS))
PAIRS = ALL_PAIRS if "TURNWISE_SOAK" in os.environ else list(zip(cycle(CRITICS), AGGREGATIONS, strict=False))
"""Every critic and every aggregation; in `make soak` each with each."""


@pytest.mark.parametrize(("critic", "aggregation"), PAIRS)
def test_micro_batches_packing_and_order_change_nothing(critic: str, aggregation: str) -> None:
    length = {"algo__aggregation__constant_length": 20} if aggregation == "seq-mean-token-sum-norm" else {}
    config = settings_of(critic, algo__aggregation=aggregation, **length)
    groups = random_groups()

    def cut(max_tokens: int, play: list[Group] = groups) -> dict[str, Tensor]:
        return gradients(make_learner(config, moved=0.02), play, config, micro_tokens=max_tokens)

    whole = cut(10**6)
    assert all(tensor.abs().max() > 1e-5 for tensor in whole.values()), "every parameter has something to learn"
    for others in (cut(1), cut(45), cut(10**6, reordered(groups))):
        assert_equal(others, whole)


@pytest.mark.parametrize("critic", CRITICS)
def test_update_does_not_depend_on_micro_batches(critic: str) -> None:
    config = settings_of(critic, train__mini_batch=4, train__epochs=2, train__learning_rate=1e-3)

    def learnt(max_tokens: int) -> LocalLearner:
        learner = make_learner(config, moved=0.02)
        learn(learner, random_groups(), config, micro_tokens=max_tokens)
        return learner

    whole, cut = learnt(10**6), learnt(1)
    start = weights(make_learner(config, moved=0.02).model)
    moved = torch.cat([(weights(whole.model)[name] - start[name]).flatten() for name in start])
    apart = torch.cat([(weights(whole.model)[name] - weights(cut.model)[name]).flatten() for name in start])
    assert apart.norm() < 1e-2 * moved.norm()


def test_skip_idle_does_not_change_the_update() -> None:
    config = settings_of(algo__kl_coef=0.0, algo__entropy_coef=0.0)
    idle = group_of([[turn_of([3] * 10, [4, 5, 6], extends=False)] for _ in range(3)], 9)
    groups = [*random_groups(), idle]
    learner = make_learner(config)
    everything = gradients(learner, groups, config, skip_idle=False)
    assert_equal(gradients(make_learner(config), groups, config, skip_idle=True), everything)
    trained = learn(learner, groups, config, skip_idle=False)
    assert trained["policy_loss"] != 0
    assert learn(learner, [idle], config, skip_idle=True) == {"idle_steps": 1.0}


@pytest.mark.parametrize("term", [{"algo__kl_coef": 0.1}, {"algo__entropy_coef": 0.01}])
def test_idle_samples_are_trained_on_if_the_loss_has_another_term(term: dict[str, float]) -> None:
    config = settings_of(**{"algo__kl_coef": 0.0, "algo__entropy_coef": 0.0, **term})
    idle = group_of([[turn_of([3] * 10, [4, 5, 6], extends=False)] for _ in range(3)])
    metrics = learn(make_learner(config, moved=0.02), [idle], config)
    assert metrics["policy_loss"] == 0 and metrics["grad_norm"] > 0


def test_gradient_is_the_formula_on_each_trajectory() -> None:
    """Clipped policy loss, token-mean, dr_grpo, written out on a plain forward: sampled tokens count, others do not."""
    config = settings_of(algo__advantage="dr_grpo", algo__kl_coef=0.0, algo__entropy_coef=0.0)
    groups = random_groups()
    plain = random_model("llama", "eager")
    losses, ratios = [], []
    for group in groups:
        mean = sum(each.total_reward for each in group.trajectories) / len(group.trajectories)
        for trajectory in group.trajectories:
            advantage = trajectory.total_reward - mean
            ids: list[int] = []
            for turn in trajectory.turns:
                ids = [*(ids if turn.extends else []), *turn.context_ids]
                for token, old in zip(turn.action_ids, turn.action_logprobs, strict=True):
                    logits = plain(torch.tensor([ids])).logits[0, -1] / turn.temperature
                    ratio = (logits.log_softmax(-1)[token] - old).exp()
                    losses.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage))
                    ratios.append(ratio.item())
                    ids = [*ids, token]
    assert min(ratios) < 0.8 and max(ratios) > 1.28, "clipping on both sides must be at work"
    (sum(losses) / len(losses)).backward()
    ours = gradients(make_learner(config), groups, config)
    assert_equal(ours, {f"policy.{name}": parameter.grad for name, parameter in plain.named_parameters()})


@pytest.mark.parametrize("kind", ["trunk", "head"])
def test_critic_is_trained_at_the_position_before_the_token(kind: str) -> None:
    """Its head's gradient is the sum of weight * (value - return) * hidden state, from a plain forward."""
    config = settings_of(kind, critic__value_clip=100.0)
    groups, plain = random_groups(), random_model("llama", "eager")
    estimated = estimate_of(groups, make_learner(config), config)
    assert estimated is not None and estimated.returns is not None
    tokens = sum(each.num_sampled for each in estimated.trajectories)
    expected = torch.zeros(1, 64)
    for sample, returns in zip(estimated.samples, estimated.returns, strict=True):
        places = sample.mask.nonzero().squeeze(1)
        hidden = plain.base_model(sample.ids[None]).last_hidden_state[0, places - 1]
        expected += (0.0 - returns[places]) @ hidden / tokens  # a new critic says 0
    ours = gradients(make_learner(config), groups, config)
    assert_equal({"weight": ours["critic.head.weight"]}, {"weight": expected.detach()})


def test_training_on_observation_tokens_would_be_detected() -> None:
    """The same ids with one observed token taken for a sampled one give another gradient."""
    config = settings_of()

    def case(*, observed: bool) -> list[Group]:
        second = ([30, 31], [32]) if observed else ([30], [31, 32])
        turns = [turn_of([3] * 10, [20, 21], extends=False, reward=1.0), turn_of(*second)]
        return [group_of([turns, [turn_of([3] * 10, [22], extends=False)]])]

    right = gradients(make_learner(config), case(observed=True), config)
    wrong = gradients(make_learner(config), case(observed=False), config)
    with pytest.raises(AssertionError):
        assert_equal(wrong, right)
