import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from episodes_for_tests import group_of, key_of, task_of, trajectory_of, turn_of
from learners_for_tests import (
    critic_parameters,
    learn,
    logprobs_of,
    make_learner,
    random_groups,
    settings_of,
    weights,
)
from turnwise.core.learner import Needs
from turnwise.core.protocols import Sampling
from turnwise.core.trajectory import Group, Trajectory
from turnwise.data.packing import pack
from turnwise.data.samples import build_samples
from turnwise.engine.native.engine import NativeEngine
from turnwise.models.critic import HeadCritic
from turnwise.training.learner import LocalLearner


def engine_of(learner: LocalLearner) -> NativeEngine:
    return NativeEngine(learner.model, slots=4, stop_ids=[1], decode=str)


def sampled(learner: LocalLearner, temperature: float, engine: NativeEngine | None = None) -> list[Trajectory]:
    """Two talks of three turns that the engine samples from the learner's model."""
    engine = engine or engine_of(learner)

    async def talk(member: int) -> Trajectory:
        turns = []
        async with engine.open(key_of(task_of("test"), member)) as session:
            for number, context in enumerate(([5] * 12, [6, 7, 8], [9])):
                said = await session.generate(context, Sampling(max_tokens=6, temperature=temperature))
                turn = turn_of(context, said.ids, extends=number > 0, logprobs=said.logprobs, temperature=temperature)
                turns.append(turn)
        return trajectory_of(turns, member=member)

    async def both() -> list[Trajectory]:
        return list(await asyncio.gather(talk(0), talk(1)))

    return asyncio.run(both())


def sampler_logprobs(trajectories: list[Trajectory]) -> torch.Tensor:
    return torch.tensor([p for each in trajectories for turn in each.turns for p in turn.action_logprobs])


def test_learner_agrees_with_the_sampler_at_its_temperature() -> None:
    learner = make_learner(settings_of())
    trajectories = sampled(learner, temperature=0.7)
    theirs = sampler_logprobs(trajectories)
    torch.testing.assert_close(torch.cat(logprobs_of(learner, trajectories)), theirs, atol=1e-4, rtol=0)
    forgotten = [
        replace(each, turns=tuple(replace(turn, temperature=1.0) for turn in each.turns)) for each in trajectories
    ]
    assert (torch.cat(logprobs_of(learner, forgotten)) - theirs).abs().max() > 0.05


def storage(learner: LocalLearner) -> list[int]:
    return [parameter.data_ptr() for parameter in (*learner.model.parameters(), *critic_parameters(learner))]


@pytest.mark.parametrize("critic", ["trunk", "head"])
def test_engine_sees_updates_without_parameters_moving(critic: str) -> None:
    config = settings_of(critic)
    learner = make_learner(config)
    engine, places = engine_of(learner), storage(learner)
    before = sampled(learner, 1.0, engine)
    state, start = learner.state_dict(), weights(learner.model)
    state = {**state, "tensors": {name: tensor.clone() for name, tensor in state["tensors"].items()}}
    learn(learner, random_groups(), config)
    assert storage(learner) == places
    after = sampled(learner, 1.0, engine)
    torch.testing.assert_close(torch.cat(logprobs_of(learner, after)), sampler_logprobs(after), atol=1e-4, rtol=0)
    assert (torch.cat(logprobs_of(learner, before)) - sampler_logprobs(before)).abs().max() > 1e-2
    learner.load_weights(SimpleNamespace(named_parameters=start.items))
    learner.load_state_dict(state)
    assert storage(learner) == places
    assert sampled(learner, 1.0, engine) == before, "back where it was, it samples what it sampled"


def test_load_weights_rejects_another_model() -> None:
    learner = make_learner(settings_of())
    with pytest.raises(ValueError, match="differ in names"):
        learner.load_weights(SimpleNamespace(named_parameters={"something.else": torch.zeros(3)}.items))


def test_update_raises_the_better_trajectory() -> None:
    config = settings_of(algo__kl_coef=0.0, algo__entropy_coef=0.0, train__learning_rate=1e-4)
    learner = make_learner(config)

    def turns(second: int, reward: float) -> list[Any]:
        return [turn_of([3] * 10, [second, second + 1], extends=False), turn_of([30, 31], [second + 2], reward=reward)]

    groups = [group_of([turns(40, 1.0), turns(50, 0.0)])]
    before = logprobs_of(learner, groups[0].trajectories)
    groups = [_as_sampled(groups[0], before)]
    learn(learner, groups, config)
    after = logprobs_of(learner, groups[0].trajectories)
    better, worse = (new - old for new, old in zip(after, before, strict=True))
    assert (better > 0).all()
    assert (worse < 0).all()


def _as_sampled(group: Group, logprobs: list[torch.Tensor]) -> Group:
    """The group with the log-probabilities that the policy itself would have reported."""
    members = []
    for trajectory, values in zip(group.trajectories, logprobs, strict=True):
        parts = values.split([len(turn.action_ids) for turn in trajectory.turns])
        turns = [
            replace(turn, action_logprobs=tuple(part.tolist()))
            for turn, part in zip(trajectory.turns, parts, strict=True)
        ]
        members.append(replace(trajectory, turns=tuple(turns)))
    return replace(group, trajectories=tuple(members))


@pytest.mark.parametrize("critic", ["no critic", "trunk", "head"])
def test_non_finite_gradient_is_skipped_and_counted(critic: str) -> None:
    config = settings_of(critic)
    hit, spared = make_learner(config), make_learner(config)
    first, second = random_groups(1), random_groups(2)
    for learner in (hit, spared):
        learn(learner, first, config)
    before, moments = weights(hit.model), hit.optimizer.tensors()
    moments = {name: tensor.clone() for name, tensor in moments.items()}
    metrics = learn(hit, _broken(second), config, step=1)
    assert not torch.isfinite(torch.tensor(metrics["grad_norm"]))
    assert hit.skipped_steps == (1 if critic == "no critic" else 2)
    assert all(torch.equal(before[name], weight) for name, weight in weights(hit.model).items())
    assert all(torch.equal(moments[name], tensor) for name, tensor in hit.optimizer.tensors().items())
    for learner in (hit, spared):
        learn(learner, second, config, step=1)
    assert all(torch.equal(mine, weights(spared.model)[name]) for name, mine in weights(hit.model).items())
    assert spared.skipped_steps == 0


def _broken(groups: list[Group]) -> list[Group]:
    """One reward is NaN, so advantages and gradients are too."""
    first = groups[0].trajectories[0]
    broken = replace(first, turn_rewards=(float("nan"), *first.turn_rewards[1:]))
    return [replace(groups[0], trajectories=(broken, *groups[0].trajectories[1:])), *groups[1:]]


@pytest.mark.parametrize("critic", ["trunk", "head"])
def test_policy_is_unchanged_during_the_critics_warm_up(critic: str) -> None:
    config = settings_of(critic, critic__warmup_steps=2)
    learner = make_learner(config)
    start = weights(learner.model)
    for step in range(2):
        heads = weights(learner.critic)
        metrics = learn(learner, random_groups(step), config, step=step)
        assert all(torch.equal(start[name], weight) for name, weight in weights(learner.model).items())
        assert not all(torch.equal(heads[name], weight) for name, weight in weights(learner.critic).items())
        assert "grad_norm" not in metrics and metrics["critic_grad_norm"] > 0
        assert all(parameter.grad is None for parameter in learner.model.parameters()), "nothing is saved up for later"
    learn(learner, random_groups(2), config, step=2)
    assert not any(torch.equal(start[name], weight) for name, weight in weights(learner.model).items())


def test_learner_without_a_critic_skips_critic_warm_up() -> None:
    config = settings_of(critic__warmup_steps=5)
    learner = make_learner(config)
    start = weights(learner.model)
    learn(learner, random_groups(), config)
    assert not all(torch.equal(start[name], weight) for name, weight in weights(learner.model).items())


def test_value_loss_moves_the_critic_towards_the_returns() -> None:
    config = settings_of("trunk", critic__value_clip=100.0, critic__learning_rate=3e-3, critic__warmup_steps=50)
    learner = make_learner(config)
    losses = [learn(learner, random_groups(), config, step=step)["value_loss"] for step in range(12)]
    assert losses[-1] < 0.5 * losses[0]


def test_new_critic_is_zero_everywhere() -> None:
    batch = pack(build_samples(random_groups()[0].trajectories))
    for critic in ("trunk", "head"):
        (scores,) = make_learner(settings_of(critic)).score([batch], Needs(values=True))
        assert scores.values is not None and scores.end_values is not None
        assert (scores.values == 0).all() and (scores.end_values == 0).all()
        assert (len(scores.values), len(scores.end_values)) == (len(batch.targets), len(batch.order))


def test_reference_stays_the_initial_policy() -> None:
    config = settings_of()
    learner = make_learner(config)
    start, batch = weights(learner.model), pack(build_samples(random_groups()[0].trajectories))

    def reference() -> torch.Tensor:
        (scores,) = learner.score([batch], Needs(policy_logprobs=True, ref_logprobs=True))
        assert scores.ref_logprobs is not None and scores.policy_logprobs is not None
        assert torch.equal(scores.ref_logprobs, scores.policy_logprobs) == (learner.settings.step == 0)
        return scores.ref_logprobs

    first = reference()
    metrics = learn(learner, random_groups(), config)
    assert metrics["kl"] == 0
    assert learn(learner, random_groups(), config, step=1)["kl"] > 0
    assert torch.equal(reference(), first)
    assert all(torch.equal(start[name], weight) for name, weight in weights(learner.reference).items())
    assert make_learner(settings_of(algo__kl_coef=0.0)).reference is None


def test_kl_term_pulls_towards_the_reference() -> None:
    """The same updates end nearer to where they began the more the divergence costs."""

    def distance(kl_coef: float) -> float:
        config = settings_of(algo__kl_coef=kl_coef, algo__entropy_coef=0.0, train__learning_rate=1e-3)
        learner = make_learner(config)
        return [learn(learner, random_groups(), config, step=step)["kl"] for step in range(5)][-1]

    assert distance(1.0) < 0.5 * distance(0.01)


def test_learner_scores_only_what_is_needed() -> None:
    batch = pack(build_samples(random_groups()[0].trajectories))
    (scores,) = make_learner(settings_of("trunk")).score([batch], Needs(values=True))
    assert scores.policy_logprobs is None and scores.entropy is None and scores.ref_logprobs is None
    (scores,) = make_learner(settings_of("trunk")).score([batch], Needs(entropy=True))
    assert scores.values is None and scores.entropy is not None
    assert (scores.entropy > 0).all()


def test_values_of_a_head_and_log_probabilities_share_a_forward_pass() -> None:
    batch = pack(build_samples(random_groups()[0].trajectories))
    learner = make_learner(settings_of("head"))
    assert isinstance(learner.critic, HeadCritic)
    torch.nn.init.normal_(learner.critic.head.weight)
    passes = list[int]()
    learner.model.base_model.register_forward_hook(lambda *_: passes.append(1))
    (both,) = learner.score([batch], Needs(policy_logprobs=True, values=True))
    assert len(passes) == 1
    (scores,), (values,) = (
        learner.score([batch], Needs(policy_logprobs=True)),
        learner.score([batch], Needs(values=True)),
    )
    assert both.values is not None and values.end_values is not None and values.end_values.std() > 0
    torch.testing.assert_close((both.policy_logprobs, both.entropy), (scores.policy_logprobs, scores.entropy))
    torch.testing.assert_close((both.values, both.end_values), (values.values, values.end_values))
