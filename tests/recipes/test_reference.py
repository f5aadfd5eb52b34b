"""The one-file algorithm learns, and the framework does what it does: the same episodes, the same gradients.

The two share the environments, the renderer and the model's weights. Sampling, cache, masks, advantages, loss,
aggregation, mini-batches and optimiser are written twice, so an error in one of them shows here.
"""

import asyncio
import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from envs_for_tests import TwoUps
from learners_for_tests import learn, weights
from turnwise.config.load import build
from turnwise.config.schema import Config
from turnwise.core.trajectory import Group, Trajectory
from turnwise.envs.registry import load_spec, spec_of
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.loading.load import LoadedModel, load_model
from turnwise.recipes.reference import (
    Episode,
    Settings,
    group_advantages,
    make_optimizer,
    policy_loss,
    roll_out,
    start_policy,
    train,
    update,
)
from turnwise.rewards.scoring import score_group
from turnwise.run.build import build_policy_stack
from turnwise.run.build_learner import build_learner
from turnwise.run.environment_mix import build_environment_mix, build_task_source

BANDIT = Settings(
    env="bandit",
    steps=6,
    groups=8,
    group_size=16,
    mini_batch=64,
    max_new_tokens=12,
    divide_by_std=False,
    warmup_steps=40,
)
FEW = replace(BANDIT, groups=4, group_size=5, mini_batch=8)
LAKE = replace(FEW, env="frozen_lake", max_new_tokens=8, divide_by_std=True)


@pytest.fixture(scope="module")
def warmed() -> LoadedModel:
    return start_policy(load_spec("bandit"), BANDIT)


@pytest.fixture(scope="module")
def babbler() -> LoadedModel:
    """Says anything, for a token or a few: a third of the vocabulary ends its turn."""
    loaded = load_model("tiny", attn_implementation="sdpa")
    return replace(loaded, stop_ids=(*loaded.stop_ids, *range(300, 800)))


def config_of(settings: Settings) -> Config:
    """The same algorithm as a configuration of the framework, in many small micro-batches."""
    return build(
        {},
        [
            ("seed", settings.seed),
            ("rollout.in_flight", 12),
            ("rollout.max_new_tokens", settings.max_new_tokens),
            ("algo.advantage", "grpo" if settings.divide_by_std else "dr_grpo"),
            ("algo.entropy_coef", 0),
            ("algo.loss.dual_clip", "none"),
            ("algo.loss.clip_low", settings.clip_low),
            ("algo.loss.clip_high", settings.clip_high),
            ("train.mini_batch", settings.mini_batch),
            ("train.micro_tokens", 500),
            ("train.learning_rate", settings.learning_rate),
            ("train.max_grad_norm", settings.max_grad_norm),
        ],
    )


def for_framework(loaded: LoadedModel) -> LoadedModel:
    model = copy.deepcopy(loaded.model)
    model.set_attn_implementation(ATTENTION)
    return replace(loaded, model=model)


def played_by_both(loaded: LoadedModel, settings: Settings, step: int) -> tuple[list[list[Episode]], list[Group]]:
    kind, config = load_spec(settings.env), config_of(settings)
    here = asyncio.run(roll_out(loaded, kind, settings, step))
    worlds = build_environment_mix(config.env, config.agent, kind)
    tasks = build_task_source(config, worlds)
    collector = build_policy_stack(config, worlds, for_framework(loaded)).collector
    there = asyncio.run(
        collector.collect(tasks.draw(step, settings.groups), group_size=settings.group_size, round=step)
    )
    return here, [score_group(group, settings.format_penalty) for group in there.groups]


def with_rewards(here: Sequence[Sequence[Episode]], there: Sequence[Group]) -> tuple[list[list[Episode]], list[Group]]:
    """The same rewards, drawn at random, for both: a babbler earns none worth learning from."""
    rng = random.Random(5)
    groups, episodes = [], []
    for own, group in zip(here, there, strict=True):
        rewarded = [
            replace(one, turn_rewards=tuple(rng.choice((0.0, 0.5, -0.1)) for _ in one.turns))
            for one in group.trajectories
        ]
        groups.append(replace(group, trajectories=tuple(rewarded)))
        episodes.append([replace(e, reward=one.total_reward) for e, one in zip(own, rewarded, strict=True)])
    return episodes, groups


def mask_of(trajectory: Trajectory) -> list[bool]:
    parts = [[False] * len(turn.context_ids) + [True] * len(turn.action_ids) for turn in trajectory.turns]
    return [sampled for part in parts for sampled in part]


def moved(model: Any, distance: float) -> Any:
    """A copy whose weights are elsewhere, as those of a policy that has learnt since it sampled."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += distance * torch.randn(parameter.shape, generator=generator)
    return other


def assert_same(ours: dict[str, torch.Tensor], reference: dict[str, torch.Tensor], tolerance: float) -> None:
    """Equal up to a share of the length of all of them together."""
    assert ours.keys() == reference.keys()
    length = torch.stack([value.norm() for value in reference.values()]).norm()
    assert length > 0
    for name, value in reference.items():
        assert (ours[name] - value).norm() <= tolerance * length, name


def test_reference_learns() -> None:
    """To say "Up" twice, which nothing but the reward tells it."""
    settings = Settings(
        env="TwoUps", steps=14, groups=4, group_size=8, mini_batch=16, max_new_tokens=10, warmup_steps=40
    )
    lines: list[str] = []
    kind = spec_of(TwoUps)
    history = train(start_policy(kind, settings), kind, settings, lines.append)
    assert history[0] <= 0.65
    assert sum(history[-2:]) / 2 >= 0.8
    assert len(lines) == len(history) == settings.steps


@pytest.mark.parametrize("settings", [FEW, LAKE], ids=["bandit", "frozen_lake"])
def test_reference_plays_the_same_episodes(settings: Settings, warmed: LoadedModel, babbler: LoadedModel) -> None:
    here, there = played_by_both(warmed if settings is FEW else babbler, settings, step=3)
    for own, group in zip(here, there, strict=True):
        for episode, trajectory in zip(own, group.trajectories, strict=True):
            assert episode.ids == [i for turn in trajectory.turns for i in (*turn.context_ids, *turn.action_ids)]
            assert episode.sampled == mask_of(trajectory)
            logprobs = [p for p, sampled in zip(episode.sampler_logprobs, episode.sampled, strict=True) if sampled]
            assert logprobs == pytest.approx([p for turn in trajectory.turns for p in turn.action_logprobs], abs=1e-4)
            assert episode.reward == pytest.approx(trajectory.total_reward)
            assert episode.success == trajectory.status.succeeded
    assert len({tuple(episode.ids) for group in here for episode in group}) > settings.groups
    assert max(len(one.turns) for group in there for one in group.trajectories) == (1 if settings is FEW else 5)


@pytest.mark.parametrize("divide_by_std", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["grpo", "dr_grpo"])
def test_reference_gradients_agree_if_ratios_are_clipped(babbler: LoadedModel, divide_by_std: bool) -> None:
    settings = replace(LAKE, divide_by_std=divide_by_std, mini_batch=LAKE.groups * LAKE.group_size)
    here, there = with_rewards(*played_by_both(babbler, settings, step=0))
    reference = moved(babbler.model, 0.02)
    rewards = torch.tensor([[episode.reward for episode in group] for group in here], dtype=torch.float64)
    advantages = group_advantages(rewards, divide_by_std).flatten().tolist()
    policy_loss(reference, [episode for group in here for episode in group], advantages, settings).backward()

    config = config_of(settings)
    learner = build_learner(config.algo, config.critic, config.train, moved(for_framework(babbler).model, 0.02))
    learner.step = dict  # type: ignore[method-assign]
    metrics = learn(learner, there, config)
    assert 0.05 < metrics["clip_fraction"] < 0.95
    gradients = [
        {name: parameter.grad for name, parameter in model.named_parameters()} for model in (learner.model, reference)
    ]
    assert_same(*gradients, tolerance=1e-4)


def test_reference_update_agrees(warmed: LoadedModel) -> None:
    """Shuffled mini-batches, the last one smaller, clipped gradients and AdamW."""
    here, there = with_rewards(*played_by_both(warmed, FEW, step=2))
    before, reference = weights(warmed.model), copy.deepcopy(warmed.model)
    update(reference, make_optimizer(reference, FEW), here, FEW, step=2)
    config = config_of(FEW)
    learner = build_learner(config.algo, config.critic, config.train, for_framework(warmed).model)
    learn(learner, there, config_of(FEW), step=2)
    changes = [
        {name: value - before[name] for name, value in weights(model).items()} for model in (learner.model, reference)
    ]
    assert_same(*changes, tolerance=1e-2)


def test_group_advantages_of_equal_rewards_are_zero() -> None:
    advantages = group_advantages(torch.tensor([[0.1, 0.1, 0.1], [0.0, 1.0, 0.5]], dtype=torch.float64), True)
    assert advantages[0].abs().max() < 1e-9
    torch.testing.assert_close(advantages[1], torch.tensor([-1.0, 1.0, 0.0], dtype=torch.float64), atol=1e-5, rtol=0)


@pytest.mark.parametrize("divide_by_std", [True, False])
def test_group_advantages_of_a_group_of_one_are_zero(divide_by_std: bool) -> None:
    assert group_advantages(torch.tensor([[0.7], [0.0]], dtype=torch.float64), divide_by_std).tolist() == [[0.0], [0.0]]
