"""Build ArCHer beside a learner: the critic of utterances, the replay and the actor's settings."""

from pathlib import Path

from turnwise.config.schema import Config
from turnwise.core.random_streams import address
from turnwise.models.critic import UtteranceCritic
from turnwise.models.memory.plan import MemoryPlan
from turnwise.recipes.build import PolicyStack, training_sampling
from turnwise.recipes.build_learner import build_optimizer, build_schedule, estimate_settings
from turnwise.record.trajectories import open_replay
from turnwise.rollout.collect import Collector
from turnwise.training.archer import ActorSettings, Archer, UtteranceSampler
from turnwise.training.learner import LocalLearner
from turnwise.training.optimizer import mark_embeddings
from turnwise.training.utterance_critic import UtteranceCriticLearner


def build_archer(
    config: Config, stack: PolicyStack, learner: LocalLearner, folder: Path, plan: MemoryPlan
) -> Archer | None:
    """Return what estimates the steps instead of algo.advantage; None with algo.method on_policy.

    `folder`: of the replay. Its critic becomes a companion of the learner, so that checkpoints hold it.
    """
    if config.algo.method == "on_policy":
        return None
    critic = build_utterance_critic(config, learner, plan)
    learner.companions["utterance_critic"] = critic
    settings = ActorSettings(
        archer=config.archer,
        algo=config.algo,
        needs=estimate_settings(config).needs,
        micro_tokens=plan.micro_tokens,
        run_seed=config.seed,
    )
    assert isinstance(stack.collector, Collector)
    sampler = UtteranceSampler(
        policy=stack.collector.policy,
        sampling=training_sampling(config),
        summary_tokens=config.context.summary_tokens,
        max_tokens=config.rollout.max_tokens,
        run_seed=config.seed,
    )
    replay = open_replay(folder, config.archer.replay)
    return Archer(settings=settings, critic=critic, replay=replay, sampler=sampler)


def build_utterance_critic(config: Config, learner: LocalLearner, plan: MemoryPlan) -> UtteranceCriticLearner:
    critic = UtteranceCritic(learner.model, seed=address("utterance critic", config.seed))
    mark_embeddings(critic.trunk)
    train, schedule = config.train, build_schedule(config.train)
    muon = train.optimizer == "muon"  # as for the policy, whose architecture it shares
    return UtteranceCriticLearner(
        critic,
        build_optimizer(train, critic.parameters(), config.critic.learning_rate, schedule, plan, muon=muon),
        target_rate=config.archer.target_rate,
        expectile=0.5,
        micro_tokens=plan.micro_tokens,
    )
