"""ArCHer on stored episodes: the critic by implicit Q-learning, and the advantages that weigh the stored utterances."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from episodes_for_tests import trajectory_of, turn_of
from learners_for_tests import make_learner, rollout_of, settings_of
from models_for_tests import random_model
from turnwise.algos.archer import compute_advantages
from turnwise.core.learner import Needs
from turnwise.core.protocols import Sampling
from turnwise.core.trajectory import Group, Trajectory
from turnwise.engine.scripted import ScriptedEngine
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.critic import UtteranceCritic
from turnwise.record.steps import IdleReason
from turnwise.record.trajectories import open_replay
from turnwise.run.build_learner import update_settings
from turnwise.training.estimators.archer import ActorSettings, UtteranceSampler, draw_batches
from turnwise.training.estimators.archer_offline import OfflineArcher
from turnwise.training.estimators.utterance_critic import UtteranceCriticLearner
from turnwise.training.optimizer import Optimizer, OptimizerSettings
from turnwise.training.update import update

GAMMA, EXPECTILE = 0.9, 0.8
GOOD, BAD = 30, 31
STORED = [(GOOD, GOOD), (GOOD, BAD), (GOOD, BAD), (BAD, GOOD), (BAD, BAD), (BAD, BAD)]
"""Choices in two turns. Only GOOD in both wins, once in six."""
OFFLINE, AWAC = (
    settings_of(
        algo__estimator=estimator,
        algo__loss="awr",
        algo__loss__beta=0.2,
        algo__estimator__whiten=False,
        algo__estimator__gamma_turn=GAMMA,
        algo__kl_coef=0.0,
        algo__entropy_coef=0.0,
        critic__kind="utterances",
        critic__batch=6,
    )
    for estimator in ("archer_offline", "awac")
)


def play(member: int, first: int, second: int) -> Trajectory:
    turns = [turn_of([3, 4, 5], [first], extends=False), turn_of([6], [second], reward=float(first == second == GOOD))]
    return trajectory_of(turns, member=member)


def groups() -> list[Group]:
    played = [play(number, *choices) for number, choices in enumerate(STORED)]
    return [Group(task=each.task, trajectories=(each,)) for each in played]


def make_offline(folder: Path, sampler: UtteranceSampler | None = None, critic_updates: int = 2) -> OfflineArcher:
    critic = UtteranceCritic(random_model("llama", ATTENTION, layers=1), seed=1)
    rates = OptimizerSettings(learning_rate=1e-2, weight_decay=0.0, max_grad_norm=1.0)
    optimizer = Optimizer(list(critic.parameters()), rates, lambda step: 0.1**step)  # the noise of the last updates
    replay = open_replay(folder, 100)
    for group in groups():
        assert replay.add(group.trajectories[0])
    config = OFFLINE if sampler is None else AWAC
    algo, archer = config.algo, config.algo.estimator
    settings = config.critic.model_copy(update={"updates": critic_updates})
    return OfflineArcher(
        settings=ActorSettings(archer=archer, critic=settings, algo=algo, needs=Needs(), micro_tokens=1000, run_seed=0),
        critic=UtteranceCriticLearner(critic, optimizer, target_rate=0.5, expectile=EXPECTILE, micro_tokens=1000),
        replay=replay,
        sampler=sampler,
    )


def expectile_of(values: list[float]) -> float:
    """Return m with EXPECTILE * sum of (q - m) above it = (1 - EXPECTILE) * sum of (m - q) below it, by bisection."""
    low, high = min(values), max(values)
    for _ in range(60):
        middle = (low + high) / 2
        above = sum(max(0.0, each - middle) for each in values)
        below = sum(max(0.0, middle - each) for each in values)
        low, high = (middle, high) if EXPECTILE * above > (1 - EXPECTILE) * below else (low, middle)
    return low


def exact_values() -> tuple[list[float], list[float]]:
    """Return Q and V of the stored decisions in their order: the fixed point of IQL, in a table, last turn first."""
    later = {
        first: expectile_of([float(each == (GOOD, GOOD)) for each in STORED if each[0] == first])
        for first in (GOOD, BAD)
    }
    start = expectile_of([GAMMA * later[first] for first, _ in STORED])
    q = [value for each in STORED for value in (GAMMA * later[each[0]], float(each == (GOOD, GOOD)))]
    v = [value for first, _ in STORED for value in (start, later[first])]
    return q, v


def test_offline_critic_reaches_iql_fixed_point_and_actor_prefers_good(tmp_path: Path) -> None:
    archer, learner = make_offline(tmp_path, critic_updates=60), make_learner(OFFLINE)
    for step in (1, 2):
        found = archer.estimate(rollout_of(groups(), step), [], learner)
    assert found is not None
    estimates = archer.critic.estimate_values(found.samples)
    q, v = exact_values()
    torch.testing.assert_close(estimates.q.mean(1), torch.tensor(q), atol=0.2, rtol=0)
    torch.testing.assert_close(estimates.v.mean(1), torch.tensor(v), atol=0.2, rtol=0)
    for step in range(3):
        update(learner, found, update_settings(OFFLINE.algo, OFFLINE.critic, OFFLINE.train, OFFLINE.seed), step)
    policy = random_model("llama", "eager")
    policy.load_state_dict(learner.model.state_dict())
    with torch.no_grad():
        first = policy(torch.tensor([[3, 4, 5]])).logits[0, -1].softmax(-1)
    assert float(first[GOOD]) > 1.5 * float(first[BAD]), "though the data has both equally often"


def test_offline_estimate_weighs_the_stored_utterances(tmp_path: Path) -> None:
    archer, learner = make_offline(tmp_path), make_learner(OFFLINE)
    assert asyncio.run(archer.sample(rollout_of(groups(), 1))) == [], "the policy does not act"
    found = archer.estimate(rollout_of(groups(), 1), [], learner)
    assert found is not None
    stored = [[3, 4, 5, first, 6, second] for first, second in STORED]
    assert [each.ids.tolist() for each in found.samples] == stored
    estimates = archer.critic.estimate_values(found.samples)
    advantages = torch.cat([each[sample.mask] for each, sample in zip(found.advantages, found.samples, strict=True)])
    torch.testing.assert_close(advantages, compute_advantages(estimates.q, estimates.v) / archer.critic.std)
    assert {"q_explained", "overestimation", "target_drift"} <= found.metrics.keys()
    assert found.metrics["q_loss"] > 0 and 0 < found.metrics["effective_samples"] <= 1
    assert archer.estimate(rollout_of([], 1), [], learner) is IdleReason.NO_UTTERANCES


def test_offline_archer_leaves_the_stored_episodes_alone(tmp_path: Path) -> None:
    archer, learner = make_offline(tmp_path), make_learner(OFFLINE)
    archer.estimate(rollout_of(groups(), 1), asyncio.run(archer.sample(rollout_of(groups(), 1))), learner)
    assert len(archer.replay) == len(STORED)


def always_good() -> UtteranceSampler:
    """Return a sampler whose policy answers GOOD wherever it is asked."""
    policy: Any = ScriptedEngine(lambda key, turn, ids: [GOOD], [1])
    return UtteranceSampler(policy=policy, sampling=Sampling(max_tokens=1), summary_tokens=1, max_tokens=9, run_seed=0)


def policy_values() -> tuple[list[float], list[float]]:
    """Return Q and V of the stored decisions for a policy that is always GOOD: V(s) = Q(s, GOOD), last turn first."""
    q, v = list[float](), list[float]()
    for first, second in STORED:
        later = {each: float((each, GOOD) == (GOOD, GOOD)) for each in (GOOD, BAD)}
        q += [GAMMA * later[first], float((first, second) == (GOOD, GOOD))]
        v += [GAMMA * later[GOOD], later[first]]
    return q, v


def test_awac_critic_values_the_policy_and_not_the_data(tmp_path: Path) -> None:
    archer, learner = make_offline(tmp_path, always_good(), critic_updates=40), make_learner(AWAC)
    archer.critic.expectile = None
    few = archer.settings.archer.model_copy(update={"states": 120})
    archer.settings = replace(archer.settings, archer=few)
    for step in (1, 2):
        fresh = asyncio.run(archer.sample(rollout_of(groups(), step)))
        found = archer.estimate(rollout_of(groups(), step), fresh, learner)
    assert found is not None
    assert [each.sample.ids[-1].item() for each in fresh] == [GOOD] * few.states
    estimates = archer.critic.estimate_values(found.samples)
    q, v = policy_values()
    torch.testing.assert_close(estimates.q.mean(1), torch.tensor(q), atol=0.3, rtol=0)
    torch.testing.assert_close(estimates.v.mean(1), torch.tensor(v), atol=0.3, rtol=0)


@pytest.mark.parametrize("empty", [0, 1])
def test_offline_archer_skips_turns_without_tokens(tmp_path: Path, empty: int) -> None:
    archer = make_offline(tmp_path, always_good())
    turns = [turn_of([3, 4], [] if number == empty else [5], extends=number > 0) for number in range(2)]
    assert archer.replay.add(trajectory_of(turns, member=99))
    fresh = asyncio.run(archer.sample(rollout_of(groups(), 1)))
    batches = draw_batches(archer.replay, archer.settings, 1)
    for each in fresh:
        stored = batches[each.state.update].samples[each.state.decision // 2].ids.tolist()
        turns = each.state.trajectory.turns
        assert stored == [token for turn in turns for token in (*turn.context_ids, *turn.action_ids)]
    assert archer.estimate(rollout_of(groups(), 1), fresh, make_learner(AWAC)).samples
