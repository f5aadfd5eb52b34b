"""Learners over small random models, and groups of trajectories for them to learn from."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from episodes_for_tests import group_of, turn_of
from models_for_tests import VOCABULARY, random_model
from turnwise.config.load import build
from turnwise.config.schema import Config
from turnwise.core.constraint import Constraint
from turnwise.core.learner import Needs
from turnwise.core.trajectory import Group, Trajectory, Turn
from turnwise.data.packing import micro_batches, pack, pack_train, unpack
from turnwise.data.samples import build_samples
from turnwise.models.attention.interface import ATTENTION
from turnwise.record.steps import EpisodeSource, IdleReason
from turnwise.rollout.failures import DroppedEpisodes
from turnwise.run.build_learner import build_coefficients, build_learner, estimate_settings, update_settings
from turnwise.testing import check_learner
from turnwise.training.estimators.on_policy import estimate
from turnwise.training.learner import LocalLearner
from turnwise.training.step import Estimate, Rollout
from turnwise.training.update import train_samples, update

CRITICS = {"no critic": {}, "trunk": {"critic.kind": "trunk"}, "head": {"critic.kind": "head"}}


def settings_of(critic: str = "no critic", **settings: Any) -> Config:
    """Return a configuration with all terms of the loss, changed by settings with `__` for `.` in their names."""
    given = {
        "algo.advantage": "grpo" if critic == "no critic" else "gae",
        "algo.kl_coef": 0.1,
        "algo.entropy_coef": 0.01,
        "train.learning_rate": 1e-2,
        "critic.learning_rate": 1e-2,
        "train.mini_batch": 100,
        **CRITICS[critic],
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    if given.get("algo.loss", "ppo") in ("ppo", "gspo"):
        given.setdefault("algo.loss.dual_clip", "none")
    return build({}, list(given.items()))


def make_learner(config: Config, *, moved: float = 0.0, family: str = "llama") -> LocalLearner:
    """Return a learner with fixed weights. `moved`: distance of policy and critic from their initial weights."""
    learner = build_learner(config.algo, config.critic, config.train, random_model(family, ATTENTION))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in (*learner.model.parameters(), *critic_parameters(learner)):
            parameter += moved * torch.randn(parameter.shape, generator=generator)
    return learner


def critic_parameters(learner: LocalLearner) -> list[Any]:
    return [] if learner.critic is None else list(learner.critic.parameters())


def random_groups(seed: int = 0, *, groups: int = 2, members: int = 3) -> list[Group]:
    """Return groups: members share a prompt, differ in reward, and have one to three turns, some in a new context."""
    rng = random.Random(seed)
    return [
        group_of([_turns(rng, prompt) for _ in range(members)], index)
        for index in range(groups)
        for prompt in [_ids(rng, 10 + index)]
    ]


def _turns(rng: random.Random, prompt: Sequence[int]) -> list[Turn]:
    first = _turn(rng, prompt, extends=False)
    later = [_turn(rng, _ids(rng, rng.randint(1, 5)), extends=rng.random() < 0.6) for _ in range(rng.randint(0, 2))]
    return [first, *later]


def _turn(rng: random.Random, context: Sequence[int], *, extends: bool) -> Turn:
    action = _ids(rng, rng.randint(1, 6))
    logprobs = [rng.uniform(-5.5, -3.5) for _ in action]
    return turn_of(
        context, action, extends=extends, reward=rng.choice((0.0, 0.5, 1.0)), logprobs=logprobs, temperature=0.8
    )


def _ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, VOCABULARY) for _ in range(length)]


def estimate_of(groups: Sequence[Group], learner: LocalLearner, config: Config) -> Estimate | None:
    settings = estimate_settings(
        config.algo, config.reward, allowed_sets=lambda _, ids: [_allow_half(token) for token in ids]
    )
    estimated = estimate(groups, learner, settings, build_coefficients(config.algo))
    return None if isinstance(estimated, IdleReason) else estimated


def rollout_of(groups: Sequence[Group], number: int = 1) -> Rollout:
    """Return the rollout of a step that keeps all its groups."""
    return Rollout(
        number=number,
        source=EpisodeSource.PLAYED,
        groups=list(groups),
        kept=list(groups),
        kept_share=1.0,
        counts=Counter(),
        dropped=DroppedEpisodes(),
    )


def constrain_first_turn(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory as if half of the tokens had been allowed in its first turn."""
    first, *others = trajectory.turns
    return replace(trajectory, turns=(replace(first, constraint=Constraint(grammar="")), *others))


def _allow_half(token: int) -> bytes:
    return bytes(0x55 << token % 2 for _ in range(-(-VOCABULARY // 8)))


def learn(
    learner: LocalLearner,
    groups: Sequence[Group],
    config: Config,
    step: int = 0,
    rate_scale: float = 1.0,
    **changes: Any,
) -> dict[str, float]:
    """Take one training step, as the loop does."""
    settings = replace(update_settings(config.algo, config.critic, config.train, config.seed), **changes)
    learner.begin_step(replace(learner.settings, step=step))
    estimated = estimate_of(groups, learner, config)
    assert estimated is not None
    return update(learner, estimated, settings, step, rate_scale).metrics


def gradients(learner: LocalLearner, groups: Sequence[Group], config: Config, **changes: Any) -> dict[str, Tensor]:
    """Return the gradients of one optimizer step without taking it."""
    learner.step = dict  # type: ignore[method-assign]
    learn(learner, groups, config, **changes)
    modules = {"policy": learner.model, **({} if learner.critic is None else {"critic": learner.critic})}
    return {
        f"{module}.{name}": torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for module, parameters in modules.items()
        for name, parameter in parameters.named_parameters()
    }


def check_learner_contract(make: Callable[[], LocalLearner], config: Config, folder: Path) -> None:
    """Put a learner through `turnwise.testing.check_learner`, with batches of several micro-batches."""
    learner = make()
    estimated = estimate_of(random_groups(), learner, config)
    assert estimated is not None
    samples = train_samples(
        estimated,
        set(range(len(estimated.trajectories))),
        update_settings(config.algo, config.critic, config.train, config.seed),
    )
    parts = micro_batches([sample.sample for sample in samples], 64, learner.ranks)
    check_learner(
        make,
        [pack([samples[index].sample for index in part]) for part in parts],
        [pack_train([samples[index] for index in part]) for part in parts],
        needs=Needs(policy_logprobs=True, entropy=True, values=learner.critic is not None, ref_logprobs=True),
        settings=learner.settings,
        folder=folder,
    )


def weights(module: Any) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def logprobs_of(learner: LocalLearner, trajectories: Sequence[Trajectory]) -> list[Tensor]:
    """Return the learner's scores of every sampled token, by sample."""
    batch = pack(build_samples(trajectories))
    (scores,) = learner.score([batch], Needs(policy_logprobs=True))
    assert scores.policy_logprobs is not None
    return unpack(batch, scores.policy_logprobs)
