from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes_for_tests import group_of, trajectory_of, turn_of
from learners_for_tests import estimate_of, learn, make_learner, random_groups, settings_of, weights
from turnwise.algos.losses import AGGREGATIONS
from turnwise.core.trajectory import Group, Status
from turnwise.run.build_learner import build_coefficients, estimate_settings, update_settings
from turnwise.training.estimators.on_policy import estimate, select_trajectories
from turnwise.training.update import UpdateSettings, mini_batch_order, train_samples

CUT = (Status.TRUNCATED_TOKENS, Status.TRUNCATED_TIME, Status.TRUNCATED_LIMIT)


def update_of(**changes: object) -> UpdateSettings:
    """`changes` of training settings, or of the update's own."""
    config = settings_of()
    settings = update_settings(config.algo, config.critic, config.train, config.seed)
    own = {name: changes.pop(name) for name in list(changes) if name in UpdateSettings.__slots__}
    return replace(settings, train=settings.train.model_copy(update=changes), **own)  # type: ignore[arg-type]


@settings(max_examples=50)
@given(count=st.integers(1, 40), mini_batch=st.integers(1, 50), epochs=st.integers(1, 3), step=st.integers(0, 5))
def test_mini_batch_order_partitions_each_epoch(count: int, mini_batch: int, epochs: int, step: int) -> None:
    parts = list(mini_batch_order(range(count), update_of(mini_batch=mini_batch, epochs=epochs), step))
    per_epoch = -(-count // mini_batch)
    assert len(parts) == epochs * per_epoch
    for epoch in range(epochs):
        own = parts[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(index for part in own for index in part) == list(range(count))
        assert all(len(part) == mini_batch for part in own[:-1])
    assert parts == list(mini_batch_order(range(count), update_of(mini_batch=mini_batch, epochs=epochs), step))


def test_mini_batches_are_shuffled_by_run_step_and_epoch() -> None:
    orders = [
        [
            index
            for part in mini_batch_order(range(20), update_of(mini_batch=5, epochs=2, run_seed=seed), step)
            for index in part
        ]
        for seed in (0, 1)
        for step in (0, 1)
    ]
    halves = [tuple(half) for order in orders for half in (order[:20], order[20:])]
    assert len(set(halves)) == 8
    assert tuple(range(20)) not in halves


def test_truncated_episodes_are_trained_on_unless_dropped() -> None:
    one = [turn_of([3], [4], extends=False)]
    members = [trajectory_of(one, status=status) for status in Status if not status.ongoing]
    group = Group(task=members[0].task, trajectories=(*members, trajectory_of([])))
    assert select_trajectories([group, group], "zero")[1] == [0] * len(members) + [1] * len(members)
    kept, numbers = select_trajectories([group, group], "drop")
    assert {each.status for each in kept} == {each.status for each in members} - set(CUT)
    assert numbers == [0] * 3 + [1] * 3


def test_trajectory_without_sampled_tokens_is_not_in_the_baseline() -> None:
    config = settings_of(algo__advantage="dr_grpo")
    group = random_groups(members=3)[0]
    silent = trajectory_of([], task=group.task, member=9, status=Status.TRUNCATED_TOKENS)
    found = [
        estimate_of([each], make_learner(config), config)
        for each in (group, replace(group, trajectories=(silent, *group.trajectories)))
    ]
    assert found[0] is not None and found[1] is not None
    assert all(map(torch.equal, found[0].advantages, found[1].advantages))
    assert found[1].trajectories == group.trajectories


def test_remax_advantages_are_returns_minus_the_greedy_return() -> None:
    config = settings_of(algo__advantage="remax", algo__kl_coef=0.0)
    group = group_of([[turn_of([3] * 9, [4, 5], extends=False, reward=reward)] for reward in (10.0, 10.0, 12.0, 12.0)])
    baselines = {(group.task.env, group.task.seed): 11.0}
    found = estimate(
        [group],
        make_learner(config),
        estimate_settings(config.algo, config.reward),
        build_coefficients(config.algo),
        baselines,
    )
    assert found is not None
    assert [each[-2:].tolist() for each in found.advantages] == [[-1.0, -1.0], [-1.0, -1.0], [1.0, 1.0], [1.0, 1.0]]


def test_estimate_is_none_without_trajectories() -> None:
    config = settings_of()
    assert estimate_of([group_of([[], []])], make_learner(config), config) is None


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_loss_weights_are_over_the_whole_mini_batch(name: str) -> None:
    length = {"algo__aggregation__constant_length": 10} if name == "seq-mean-token-sum-norm" else {}
    config = settings_of(algo__aggregation=name, **length)
    settings = update_settings(config.algo, config.critic, config.train, config.seed)
    estimated = estimate_of(random_groups(), make_learner(config), config)
    assert estimated is not None
    chosen = {0, 2, 5}
    samples = train_samples(estimated, chosen, settings)
    assert {each.sample.trajectory for each in samples} == chosen
    lengths = [estimated.trajectories[index].num_sampled for index in sorted(chosen)]
    by_trajectory = dict.fromkeys(chosen, 0.0)
    for each in samples:
        assert (each.weights[~each.sample.mask] == 0).all() and (each.weights[each.sample.mask] > 0).all()
        by_trajectory[each.sample.trajectory] += float(each.weights.sum())
    expected = {
        "token-mean": [length / sum(lengths) for length in lengths],
        "seq-mean-token-sum": [length / 3 for length in lengths],
        "seq-mean-token-mean": [1 / 3] * 3,
        "seq-mean-token-sum-norm": [length / 30 for length in lengths],
    }
    assert [by_trajectory[index] for index in sorted(chosen)] == pytest.approx(expected[name], rel=1e-5)


def test_bootstrap_is_the_critics_value_after_truncated_episodes() -> None:
    """With gamma = lambda = 1 the return is the rest of the rewards plus the value after the last token."""
    config = settings_of("head", algo__truncated="bootstrap", algo__advantage__whiten=False)
    learner = make_learner(config)
    assert learner.critic is not None
    with torch.no_grad():
        learner.critic.head.bias.fill_(0.75)
    turns = [turn_of([3] * 10, [4, 5], extends=False, reward=0.5), turn_of([6], [7], reward=0.25)]
    members = [trajectory_of(turns, member=number, status=status) for number, status in enumerate(Status)]
    found = estimate_of([Group(task=members[0].task, trajectories=tuple(members))], learner, config)
    assert found is not None and found.returns is not None
    for trajectory, sample, returns in zip(found.trajectories, found.samples, found.returns, strict=True):
        after = 0.75 if trajectory.status in CUT else 0.0
        torch.testing.assert_close(returns[sample.mask], torch.tensor([0.75, 0.75, 0.25]) + after)


def test_old_logprobs_are_the_samplers_or_the_learners() -> None:
    groups = random_groups()
    for choice in ("sampler", "learner"):
        config = settings_of(algo__old_logprobs=choice)
        found = estimate_of(groups, make_learner(config), config)
        assert found is not None
        same = [
            torch.equal(old, each.sampler_logprobs) for old, each in zip(found.old_logprobs, found.samples, strict=True)
        ]
        assert all(same) == (choice == "sampler")
        assert ("mismatch" in found.metrics) == (choice == "learner")
        metrics = learn(make_learner(config), groups, config)
        assert (abs(metrics["ratio"] - 1) < 1e-5) == (choice == "learner")


def test_update_metrics_are_means_over_tokens() -> None:
    config = settings_of("trunk")
    whole, cut = (
        learn(make_learner(config, moved=0.02), random_groups(), config, micro_tokens=size) for size in (10**6, 1)
    )
    assert whole == pytest.approx(cut, rel=1e-3, abs=1e-6)
    assert {"policy_loss", "entropy", "ratio", "kl", "value_loss", "mismatch", "grad_norm", "critic_grad_norm"} <= set(
        whole
    )


def test_update_takes_one_optimizer_step_per_mini_batch() -> None:
    config = settings_of(train__mini_batch=2, train__epochs=2)
    learner = make_learner(config)
    learn(learner, random_groups(), config)
    steps = {float(tensor) for name, tensor in learner.optimizer.tensors().items() if name.endswith(".step")}
    assert steps == {6.0}


def test_equal_updates_give_equal_bits() -> None:
    config = settings_of("trunk", train__mini_batch=2)
    learners = [make_learner(config) for _ in range(2)]
    for learner in learners:
        for step in range(2):
            learn(learner, random_groups(step), config, step=step)
    first, second = (weights(learner.model) for learner in learners)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_kl_in_the_reward_is_measured_over_sampled_tokens_alone() -> None:
    """Trajectories differ in length, so that the matrix of tokens is padded."""
    config = settings_of(algo__advantage="reinforce", algo__kl_in="reward", algo__kl_estimator="k2", algo__kl_coef=0.5)
    learner, groups = make_learner(config, moved=0.05), random_groups()
    lengths = {each.num_sampled for group in groups for each in group.trajectories}
    estimated = estimate_of(groups, learner, config)
    assert estimated is not None and estimated.ref_logprobs is not None and len(lengths) > 1
    terms = [
        0.5 * (old - ref)[sample.mask].square()
        for sample, old, ref in zip(estimated.samples, estimated.old_logprobs, estimated.ref_logprobs, strict=True)
    ]
    assert estimated.metrics["kl"] == pytest.approx(float(torch.cat(terms).mean()), rel=1e-5)
