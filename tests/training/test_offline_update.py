"""Losses of pairs over whole optimizer steps, and groups that are drawn instead of played."""

import asyncio
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from episodes_for_tests import task_of, trajectory_of, turn_of
from learners_for_tests import gradients, learn, make_learner, random_groups, settings_of
from models_for_tests import random_model
from turnwise.config.schema import Config
from turnwise.core.learner import Needs
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.replay import Replay
from turnwise.data.samples import build_samples
from turnwise.record.steps import IdleReason, StepRecord
from turnwise.record.trajectories import open_replay
from turnwise.run.build_learner import update_settings
from turnwise.training.scores import score_samples
from turnwise.training.sources.played import filter_groups
from turnwise.training.sources.stored import Stored, has_comparable, score_rendered
from turnwise.training.step import Rollout
from turnwise.training.update import mini_batch_order

DPO = {
    "algo__advantage": "preference",
    "algo__loss": "dpo",
    "algo__aggregation": "seq-mean-token-sum",
    "algo__loss__beta": 0.3,
    "algo__kl_coef": 0.0,
    "algo__entropy_coef": 0.0,
}


def pairs(count: int) -> list[Group]:
    groups = random_groups(groups=4 * count, members=2)
    return [each for each in groups if len({member.total_reward for member in each.trajectories}) == 2][:count]


def plain_model(weights: Any) -> Any:
    model = random_model("llama", "eager")
    model.load_state_dict(weights.state_dict())
    return model


def dpo_gradients_by_hand(groups: list[Group], config: Config) -> dict[str, torch.Tensor]:
    """Gradient of the paper's loss, with whole trajectories scored one by one by the policy and the initial policy."""
    learner = make_learner(config, moved=0.02)
    policy, reference = plain_model(learner.model), plain_model(learner.reference)
    total = torch.zeros((), dtype=torch.float64)
    compared = [each for each in groups if len({member.total_reward for member in each.trajectories}) > 1]
    for group in compared:
        better = max(group.trajectories, key=lambda each: each.total_reward)
        worse = min(group.trajectories, key=lambda each: each.total_reward)
        margin = sum_logprobs(policy, better) - sum_logprobs(reference, better).detach()
        margin = margin - sum_logprobs(policy, worse) + sum_logprobs(reference, worse).detach()
        total = total - torch.nn.functional.logsigmoid(config.algo.loss.beta * margin)
    (total / len(compared)).backward()
    return {f"policy.{name}": each.grad for name, each in policy.named_parameters() if each.grad is not None}


def sum_logprobs(model: Any, trajectory: Trajectory) -> torch.Tensor:
    """Sum over all sampled tokens, segment by segment, by plain forward passes."""
    total = torch.zeros((), dtype=torch.float64)
    for sample in build_samples([trajectory]):
        logits = model(sample.ids[None]).logits[0, :-1] / sample.temperatures[1:, None]
        chosen = logits.double().log_softmax(-1).gather(1, sample.ids[1:, None])[:, 0]
        total = total + chosen[sample.mask[1:]].sum()
    return total


def groups_of_four() -> list[Group]:
    """Two groups of four members with a pair each, and one without: all returns are equal."""
    first, second, third = random_groups(groups=3, members=4)
    members = [replace(each, turn_rewards=(0.5, *[0.0] * (len(each.turns) - 1))) for each in third.trajectories]
    return [first, second, replace(third, trajectories=tuple(members))]


@pytest.mark.parametrize("mini_batch", [100, 4])
def test_dpo_step_of_larger_groups_is_a_mean_over_pairs(mini_batch: int) -> None:
    config, groups = settings_of(**DPO, train__mini_batch=mini_batch), groups_of_four()
    assert all(len({member.total_reward for member in each.trajectories}) > 1 for each in groups[:2])
    expected = dpo_gradients_by_hand(groups, config)
    found = gradients(make_learner(config, moved=0.02), groups, config)
    steps = 1 if mini_batch == 100 else 2  # the gradients of both are summed, as no step is taken
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], steps * tensor, atol=1e-5 * float(tensor.abs().max()), rtol=1e-3, msg=name
        )


def test_dpo_metrics_leave_out_steps_without_a_pair() -> None:
    config = settings_of(**{**DPO, "algo__entropy_coef": 0.01}, train__mini_batch=4)
    metrics = learn(make_learner(config, moved=0.02), groups_of_four(), config)
    assert math.isfinite(metrics["dpo_loss"]) and metrics["dpo_margin"] != 0


@pytest.mark.parametrize("micro_tokens", [10_000, 12])
def test_dpo_step_has_the_gradient_of_the_papers_loss(micro_tokens: int) -> None:
    config, groups = settings_of(**DPO), pairs(3)
    expected = dpo_gradients_by_hand(groups, config)
    found = gradients(make_learner(config, moved=0.02), groups, config, micro_tokens=micro_tokens)
    assert len(groups) == 3
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5 * float(tensor.abs().max()), rtol=1e-3, msg=name)


@pytest.mark.parametrize("mini_batch", [4, 5])
def test_mini_batches_of_a_pair_loss_keep_pairs_together(mini_batch: int) -> None:
    config = settings_of(**DPO, train__mini_batch=mini_batch)
    groups = [5, 5, 1, 1, 9, 9, 7, 7, 3, 3]
    batches = list(mini_batch_order(groups, update_settings(config.algo, config.critic, config.train, config.seed), 0))
    assert sorted(index for batch in batches for index in batch) == list(range(10))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert all(len({groups[index] for index in batch}) == len(batch) // 2 for batch in batches)


def stored(path: Path, *, tasks: int = 4, members: int = 6) -> Replay:
    replay = open_replay(path, 100)
    for number in range(tasks * members):
        turn = turn_of(
            [1, 2, 3], [number + 4, 3], extends=False, reward=float(number % members // 3), logprobs=[-1, -2]
        )
        replay.add(trajectory_of([turn], task=task_of("test", number // members), member=number))
    return replay


def draw(replay: Replay, step: int = 0, **settings: Any) -> Rollout:
    config = settings_of(**settings)
    source = Stored(
        replay=replay,
        algo=config.algo,
        select=partial(filter_groups, learner=make_learner(config), algo=config.algo, micro_tokens=10_000),
        count=3,
        group_size=4,
        run_seed=0,
        show=lambda phase, done, total: None,
    )
    return asyncio.run(source.groups(step))


@pytest.mark.parametrize(
    ("advantage", "sizes"),
    [("grpo", [4, 4, 4]), ("preference", [2, 2, 2, 2]), ("clone", [1] * 12), ("reinforce", [1] * 12)],
)
def test_stored_draws_what_the_advantage_compares(tmp_path: Path, advantage: str, sizes: list[int]) -> None:
    replay = stored(tmp_path)
    drawn = draw(replay, algo__advantage=advantage)
    assert [len(group.trajectories) for group in drawn.kept] == sizes
    assert all(member.task == group.task for group in drawn.kept for member in group.trajectories)
    if advantage == "preference":
        assert all(group.trajectories[0].total_reward > group.trajectories[1].total_reward for group in drawn.kept)
    assert draw(replay, algo__advantage=advantage) == drawn
    assert draw(replay, 1, algo__advantage=advantage) != drawn


def test_replayed_groups_are_not_counted_as_played(tmp_path: Path) -> None:
    rollout = draw(stored(tmp_path), algo__advantage="grpo")
    record = StepRecord.of(1, rollout.source, rollout.metrics())
    assert record.rollout["episodes"] == 12 and record.played("episodes") == 0
    row = record.to_row()
    assert row["data/episodes"] == 12
    assert not any(name.startswith("rollout/") for name in row)


def test_stored_groups_that_a_filter_drops_are_not_called_truncated(tmp_path: Path) -> None:
    rollout = draw(stored(tmp_path), algo__advantage="grpo", algo__filter="absolute", algo__filter__value=100.0)
    assert rollout.kept == [] and rollout.empty is IdleReason.FILTERED


def test_has_comparable_needs_different_rewards_for_pairs(tmp_path: Path) -> None:
    replay = open_replay(tmp_path, 100)
    pairs_of, groups_of = (settings_of(algo__advantage=name).algo for name in ("preference", "grpo"))
    for number in range(2):
        replay.add(trajectory_of([turn_of([1], [number + 2], extends=False, reward=1.0)], member=number))
    assert has_comparable(replay, groups_of)
    assert not has_comparable(replay, pairs_of)
    replay.add(trajectory_of([turn_of([1], [9], extends=False, reward=2.0)], member=7))
    assert has_comparable(replay, pairs_of)


def test_score_rendered_stores_the_initial_policys_logprobs(tmp_path: Path) -> None:
    """Also for trajectories with two segments. Sampled trajectories keep the log-probabilities they have."""
    learner, replay = make_learner(settings_of()), open_replay(tmp_path, 100)
    given = [each for group in random_groups(groups=3) for each in group.trajectories]
    for number, trajectory in enumerate(given):
        replay.add(trajectory, sampled=number % 2 == 0)
    assert score_rendered(replay, learner, 40, lambda done, total: None) == len(given) // 2
    samples = build_samples(given)
    expected = score_samples(samples, learner, Needs(policy_logprobs=True), 10_000)["policy_logprobs"]
    for number, entry in enumerate(replay.entries):
        scores = torch.cat(
            [part for sample, part in zip(samples, expected, strict=True) if sample.trajectory == number]
        )
        own = [logprob for turn in given[number].turns for logprob in turn.action_logprobs]
        wanted = torch.tensor(own) if entry.sampled else scores
        torch.testing.assert_close(torch.from_numpy(replay.read_logprobs(entry).copy()), wanted, atol=1e-5, rtol=1e-5)
    assert score_rendered(replay, learner, 40, lambda done, total: None) == 0
