"""Build the estimator of algo.estimator: on_policy, ArCHer online or offline, or the user's own."""

from typing import Any

from turnwise.algos.critics import UtteranceCriticSettings
from turnwise.algos.estimators import (
    ArcherOfflineSettings,
    ArcherSettings,
    AwacSettings,
    EstimatorSettings,
    UtteranceEstimator,
)
from turnwise.algos.settings import AlgoConfig
from turnwise.algos.user_code import build_own
from turnwise.config.training import TrainConfig
from turnwise.core.random_streams import address
from turnwise.models.critic import UtteranceCritic
from turnwise.models.memory.plan import MemoryPlan
from turnwise.record.trajectories import open_replay
from turnwise.rollout.collect import Collector
from turnwise.rollout.context_settings import ContextSettings, Summary
from turnwise.rollout.settings import RolloutConfig
from turnwise.run.build import PolicyStack, training_sampling
from turnwise.run.build_learner import build_optimizer, build_schedule, estimate_settings
from turnwise.run.build_parts import Parts
from turnwise.training.coefficients import Coefficients
from turnwise.training.estimators.archer import ActorSettings, Archer, UtteranceSampler
from turnwise.training.estimators.archer_offline import OfflineArcher
from turnwise.training.estimators.on_policy import OnPolicy
from turnwise.training.estimators.utterance_critic import UtteranceCriticLearner
from turnwise.training.learner import LocalLearner
from turnwise.training.optimizer import mark_embeddings
from turnwise.training.step import Estimator, RunParts


def build_on_policy(built: Parts, coefficients: Coefficients) -> OnPolicy:
    allowed_sets = built.stack.renderer.grammars.allowed_sets
    settings = estimate_settings(built.config.algo, built.config.reward, built.plan.micro_tokens, allowed_sets)
    return OnPolicy(settings, coefficients)


def choose_estimator(built: Parts, given: RunParts) -> Estimator[Any]:
    """Return the estimator of the settings; a user's own is built from what is given."""
    chosen = built.config.algo.estimator
    if isinstance(chosen, EstimatorSettings):
        estimator: Estimator[Any] = build_own(chosen, "algo.estimator", given, "sample", "estimate")
        return estimator
    return build_archer(built) if isinstance(chosen, UtteranceEstimator) else given.on_policy


def build_archer(built: Parts) -> Archer | OfflineArcher:
    """Return the estimator that replaces algo.advantage.

    Its critic becomes an auxiliary network of the learner, so that checkpoints contain it.
    """
    config, stack, learner, plan = built.config, built.stack, built.learner, built.plan
    assert isinstance(learner, LocalLearner), "a cluster's learner has no critic of utterances"
    archer, critic_settings = config.algo.estimator, config.critic
    assert isinstance(archer, UtteranceEstimator) and isinstance(critic_settings, UtteranceCriticSettings)
    critic = build_utterance_critic(config.algo, config.train, config.seed, critic_settings, learner, plan)
    learner.auxiliary["utterance_critic"] = critic
    settings = ActorSettings(
        archer=archer,
        critic=critic_settings,
        algo=config.algo,
        needs=estimate_settings(config.algo, config.reward).needs,
        micro_tokens=plan.micro_tokens,
        run_seed=config.seed,
    )
    if isinstance(archer, ArcherSettings):
        replay = open_replay(built.run.folder.replay, archer.replay)
        return Archer(
            settings=settings,
            critic=critic,
            replay=replay,
            sampler=build_sampler(config.context, config.rollout, config.seed, stack),
        )
    assert built.replay is not None
    sampler = None
    if isinstance(archer, AwacSettings):
        sampler = build_sampler(config.context, config.rollout, config.seed, stack)
    return OfflineArcher(settings=settings, critic=critic, replay=built.replay, sampler=sampler)


def build_sampler(context: ContextSettings, rollout: RolloutConfig, seed: int, stack: PolicyStack) -> UtteranceSampler:
    assert isinstance(stack.collector, Collector)
    return UtteranceSampler(
        policy=stack.collector.policy,
        sampling=training_sampling(rollout),
        summary_tokens=context.tokens if isinstance(context, Summary) else 0,
        max_tokens=rollout.max_tokens,
        run_seed=seed,
    )


def build_utterance_critic(
    algo: AlgoConfig,
    train: TrainConfig,
    seed: int,
    settings: UtteranceCriticSettings,
    learner: LocalLearner,
    plan: MemoryPlan,
) -> UtteranceCriticLearner:
    seed = address("utterance critic", seed)
    critic = UtteranceCritic(learner.model, seed=seed, own_trunk=settings.owns_trunk)
    mark_embeddings(critic.trunk)
    archer = algo.estimator
    optimizer = build_optimizer(train, critic.parameters(), settings.learning_rate, build_schedule(train), plan)
    return UtteranceCriticLearner(
        critic,
        optimizer,
        target_rate=settings.target_rate,
        expectile=archer.expectile if isinstance(archer, ArcherOfflineSettings) else None,
        micro_tokens=plan.micro_tokens,
    )
