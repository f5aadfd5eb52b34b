"""Combinations of settings that contradict each other or cannot train, each with the error that explains it."""

from collections.abc import Callable
from pathlib import Path

from turnwise.config.agent import AGENT_ENV
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.models.loading.catalogue import WARMED_UP
from turnwise.models.loading.lora import is_adapter
from turnwise.rewards.scoring import ENV, FORMAT
from turnwise.run.build import reward_names
from turnwise.run.build_learner import advantage_traits, has_critic, kl_in_reward


def check_conflicts(config: Config) -> None:
    if config.data.sources and (name := _uses_rollouts(config)):
        raise UserError(
            f"{name} needs episodes that are played, and data.sources replaces them. Leave one of them out."
        )
    for is_conflict, message in CONFLICTS:
        if is_conflict(config):
            raise UserError(message.format(**dict(config), **_derived_numbers(config)))


def _derived_numbers(config: Config) -> dict[str, int]:
    """Return the numbers that messages name besides the settings."""
    rollout = config.rollout
    return {
        "step_episodes": rollout.groups * rollout.group_size,
        "step_tasks": rollout.groups * (1 + config.algo.filter_refill),
    }


def uses_selfplay(config: Config) -> bool:
    return config.selfplay.opponent != "none"


def _has_frozen_opponent(config: Config) -> bool:
    return config.selfplay.opponent == "past" or (uses_selfplay(config) and config.selfplay.ladder_games > 0)


def _shares_gpus(config: Config) -> bool:
    settings = config.cluster
    return settings.placement == "colocated" and settings.engines > 0 and settings.learners > 0


def _ranks_by_spread(config: Config) -> bool:
    return config.algo.filter != "none" and config.algo.filter_by in ("reward_std", "entropy_std")


def _normalises_in_groups(config: Config) -> bool:
    return config.algo.normalise != "identity" and config.algo.normalise_over == "group"


def _compares_members(config: Config) -> bool:
    return any(judge.get("mode") in ("relative", "pairwise") for judge in config.reward.judges)


def _uses_rollouts(config: Config) -> str:
    """Return the setting that needs episodes to be played; "" if there is none."""
    needed = {
        "rollout.max_staleness": config.rollout.max_staleness > 0,
        "selfplay.opponent": uses_selfplay(config),
        "curriculum.pool": config.curriculum.pool > 0,
        "algo.filter_refill": config.algo.filter_refill > 0,
        "algo.advantage": advantage_traits(config).needs_greedy,
        "reward.functions": bool(config.reward.functions),
        "reward.judges": bool(config.reward.judges),
    }
    return next((name for name, is_needed in needed.items() if is_needed), "")


def _uses_archer(config: Config) -> bool:
    return config.algo.method != "on_policy"


CONFLICTS: tuple[tuple[Callable[[Config], bool], str], ...] = (
    (
        lambda c: bool(c.agent.command and c.agent.function),
        "agent.command and agent.function both name the agent. Leave out one of them.",
    ),
    (
        lambda c: c.agent.is_set and c.env.kind != AGENT_ENV,
        "env.kind {env.kind} is an environment, which agent.command or agent.function replaces. Leave out one of them.",
    ),
    (
        lambda c: c.env.kind == AGENT_ENV and bool(c.env.mix),
        "env.mix adds environments, and an agent trains on its own tasks alone. Leave out env.mix.",
    ),
    (
        lambda c: c.env.kind == AGENT_ENV and c.context.mode != "full",
        "context.mode {context.mode} is for environments. An agent decides itself what it sends to the model. Leave it "
        "out.",
    ),
    (
        lambda c: c.env.kind == AGENT_ENV and (c.cluster.engines > 0 or c.cluster.env_workers > 0),
        "agents run beside an engine in this process. Set cluster.engines and cluster.env_workers to 0.",
    ),
    (
        lambda c: c.algo.loss == "dpo" and c.algo.advantage != "preference",
        "algo.loss dpo compares two episodes of a task, and algo.advantage {algo.advantage} does not say which is "
        "better. Choose algo.advantage preference.",
    ),
    (
        lambda c: c.algo.loss == "dpo" and c.algo.aggregation != "seq-mean-token-sum",
        "algo.loss dpo sums over the tokens of an episode. Choose algo.aggregation seq-mean-token-sum.",
    ),
    (
        lambda c: c.rollout.max_staleness > 0 and uses_selfplay(c),
        "rollout.max_staleness {rollout.max_staleness} rolls out several steps at a time, and selfplay.opponent "
        "{selfplay.opponent} chooses one opponent per step. Set one of them to its default, 0 or none.",
    ),
    (
        lambda c: c.rollout.max_staleness > 0 and c.system.keep_cache == "off",
        "rollout.max_staleness {rollout.max_staleness} samples during updates, and system.keep_cache off frees the KV "
        "cache for them. Set rollout.max_staleness 0, or system.keep_cache on.",
    ),
    (
        lambda c: advantage_traits(c).needs_groups and c.rollout.group_size < 2,
        "algo.advantage {algo.advantage} compares the members of a group, and rollout.group_size is 1. "
        "Set rollout.groups 32 and rollout.group_size 8, or choose algo.advantage gae or reinforce_pp.",
    ),
    (
        lambda c: _ranks_by_spread(c) and c.rollout.group_size < 2,
        "algo.filter_by {algo.filter_by} compares the members of a group, and rollout.group_size is 1. "
        "Set rollout.groups 32 and rollout.group_size 8, or choose another algo.filter_by.",
    ),
    (
        lambda c: c.reward.combine == "each" and c.rollout.group_size < 2,
        "reward.combine each compares the members of a group, and rollout.group_size is 1. "
        "Set rollout.groups 32 and rollout.group_size 8, or reward.combine sum.",
    ),
    (
        lambda c: _normalises_in_groups(c) and c.rollout.group_size < 2,
        "algo.normalise {algo.normalise} over a group of 1 makes every return 0. "
        "Set rollout.groups 32 and rollout.group_size 8, or algo.normalise_over batch.",
    ),
    (
        lambda c: _compares_members(c) and c.rollout.group_size < 2,
        "reward.judges with mode relative or pairwise compare the members of a group, and rollout.group_size is 1. "
        "Set rollout.groups 32 and rollout.group_size 8, or choose mode absolute.",
    ),
    (
        lambda c: _compares_members(c) and advantage_traits(c).needs_greedy,
        "algo.advantage {algo.advantage} scores a greedy episode on its own, but reward.judges with mode relative or "
        "pairwise compare the members of a group. Choose mode absolute, or another advantage.",
    ),
    (
        lambda c: advantage_traits(c).needs_greedy and c.algo.normalise != "identity",
        "algo.advantage {algo.advantage} subtracts the return of a greedy episode, which is not normalised. With "
        "algo.normalise {algo.normalise} the two returns would have different units. Leave out algo.normalise.",
    ),
    (
        lambda c: advantage_traits(c).needs_greedy and c.reward.combine != "sum",
        "algo.advantage {algo.advantage} subtracts the return of a greedy episode, which is not normalised. With "
        "reward.combine {reward.combine} the two returns would have different units. Choose sum.",
    ),
    (
        lambda c: c.algo.filter == "top_count" and (c.algo.filter_value < 1 or c.algo.filter_value % 1 != 0),
        "algo.filter top_count keeps algo.filter_value groups, and {algo.filter_value} is not a number of groups. "
        "Give a whole number of 1 or more, or choose top_k for a share.",
    ),
    (
        lambda c: c.algo.correction_low > c.algo.correction_high,
        "algo.correction_low {algo.correction_low} is above algo.correction_high {algo.correction_high}, so no token "
        "would be trained. Swap them.",
    ),
    (
        lambda c: has_critic(c) and c.critic.warmup_steps >= c.train.steps,
        "critic.warmup_steps {critic.warmup_steps} takes all of train.steps {train.steps}, so the policy would never "
        "be trained. Set critic.warmup_steps below {train.steps}.",
    ),
    (
        lambda c: _uses_archer(c) and c.rollout.max_staleness > 0,
        "algo.method {algo.method} samples fresh utterances between rollout and update, and rollout.max_staleness "
        "{rollout.max_staleness} runs the two side by side. Set rollout.max_staleness to 0.",
    ),
    (
        lambda c: _uses_archer(c) and (c.cluster.engines > 0 or c.cluster.learners > 0),
        "algo.method {algo.method} trains its critic in this process. Set cluster.engines and cluster.learners to 0.",
    ),
    (
        lambda c: c.algo.method == "archer" and (bool(c.data.sources) or c.env.kind == AGENT_ENV),
        "algo.method archer needs an environment to fill its replay buffer. Remove data.sources and set env.kind to an "
        "environment, or choose algo.method archer_offline.",
    ),
    (
        lambda c: c.algo.method in ("archer_offline", "awac") and not c.data.sources,
        "algo.method {algo.method} trains on stored episodes alone. Name them (data.sources), or choose archer.",
    ),
    (
        lambda c: c.algo.method == "awac" and c.env.kind == AGENT_ENV,
        "algo.method awac lets the policy act at stored states, and an agent acts by itself. Choose algo.method "
        "archer_offline.",
    ),
    (
        lambda c: _uses_archer(c) and uses_selfplay(c),
        "algo.method {algo.method} learns from episodes of many steps, and selfplay.opponent {selfplay.opponent} plays "
        "otherwise in each of them. Set selfplay.opponent to none.",
    ),
    (
        lambda c: _uses_archer(c) and c.algo.gamma_turn == "adaptive",
        "algo.gamma_turn adaptive needs a token-level critic; algo.method {algo.method} has an utterance-level one. "
        "Set algo.gamma_turn to a number, such as 0.98.",
    ),
    (
        lambda c: _uses_archer(c) and c.algo.kl_coef > 0 and kl_in_reward(c.algo),
        "algo.kl_in reward adds the KL term to rewards, which the critic of algo.method {algo.method} learns from old "
        "episodes. Choose algo.kl_in loss.",
    ),
    (
        lambda c: _uses_archer(c) and (c.reward.combine != "sum" or c.algo.normalise != "identity"),
        "algo.method {algo.method} learns from turn rewards as they are. Leave out reward.combine {reward.combine} and "
        "algo.normalise {algo.normalise}.",
    ),
    (
        lambda c: _uses_archer(c) and c.diagnose.gradients_every > 0,
        "diagnose.gradients_every compares groups that a step trains on, and algo.method {algo.method} trains on turns "
        "of many steps. Set diagnose.gradients_every 0.",
    ),
    (
        lambda c: c.algo.method in ("archer", "awac") and c.archer.states < c.archer.critic_updates,
        "archer.states {archer.states} is less than archer.critic_updates {archer.critic_updates}: some updates would "
        "have no state to train V at. Set archer.states to at least {archer.critic_updates}.",
    ),
    (
        lambda c: c.algo.method == "archer" and c.train.mini_batch > c.archer.states,
        "train.mini_batch {train.mini_batch} is more than the utterances of a step, archer.states {archer.states}. "
        "Set train.mini_batch to at most {archer.states}.",
    ),
    (
        lambda c: 0 < c.curriculum.pool < c.rollout.groups * (1 + c.algo.filter_refill),
        "curriculum.pool {curriculum.pool} has fewer tasks than a step may draw: rollout.groups {rollout.groups} in "
        "each of 1 + algo.filter_refill {algo.filter_refill} rounds. Set curriculum.pool to at least {step_tasks}.",
    ),
    (
        lambda c: uses_selfplay(c) and bool(c.env.mix),
        "selfplay.opponent {selfplay.opponent} trains one game, and env.mix adds others. Leave out one of the two.",
    ),
    (
        lambda c: uses_selfplay(c) and c.curriculum.pool > 0,
        "curriculum.pool ranks tasks by how often they are solved, which with selfplay.opponent {selfplay.opponent} "
        "depends on the opponent. Leave out one of the two.",
    ),
    (
        lambda c: _shares_gpus(c) and max(c.cluster.gpus_per_engine or 0, c.cluster.gpus_per_learner or 0) > 1,
        "cluster.placement colocated puts an engine and a learner on one GPU, and cluster.gpus_per_engine or "
        "cluster.gpus_per_learner is above 1. Set cluster.placement disaggregated.",
    ),
    (
        lambda c: uses_selfplay(c) and (c.cluster.engines > 0 or c.cluster.env_workers > 0),
        "selfplay.opponent {selfplay.opponent} plays its matches in this process. Set cluster.engines and "
        "cluster.env_workers to 0.",
    ),
    (
        lambda c: uses_selfplay(c) and advantage_traits(c).needs_greedy,
        "algo.advantage {algo.advantage} adds a greedy episode per group, which has no opponent with "
        "selfplay.opponent {selfplay.opponent}. Choose another advantage.",
    ),
    (
        lambda c: c.selfplay.opponent == "self" and c.rollout.groups % 2 == 1,
        "selfplay.opponent self trains both players of a match, one group each, and rollout.groups {rollout.groups} "
        "is odd. Set rollout.groups to an even number.",
    ),
    (
        lambda c: c.selfplay.opponent == "self" and c.rollout.in_flight < 2,
        "selfplay.opponent self runs both players of a match at once. Raise rollout.in_flight to 2 or more.",
    ),
    (
        lambda c: bool(c.engine.urls) and _has_frozen_opponent(c),
        "selfplay.opponent {selfplay.opponent} generates with two sets of weights, and the servers of engine.urls hold "
        "one. Leave out engine.urls, or choose selfplay.opponent self with selfplay.ladder_games 0.",
    ),
    (
        lambda c: c.sft.demos is not None,
        "sft.demos {sft.demos} is a setting of `turnwise sft`. Resume such a run with `turnwise sft --resume RUN`, or "
        "train its model with model.name RUN.",
    ),
    (
        lambda c: c.lora.rank > 0 and c.model.name in WARMED_UP and not c.model.warmup_steps,
        "lora.rank trains an adapter for a base model that is saved, and {model.name} without a warm-up is not saved. "
        "Set model.warmup_steps 60, for example.",
    ),
    (
        lambda c: c.lora.rank > 0 and is_adapter(Path(c.model.name).expanduser()),
        "model.name {model.name} is already an adapter, which training continues. Leave out lora.rank.",
    ),
    (
        lambda c: c.diagnose.rollback and not c.diagnose.alarms,
        "diagnose.rollback reacts to alarms, and diagnose.alarms is false. Set diagnose.alarms true.",
    ),
    (
        lambda c: len(set(reward_names(c))) < len(reward_names(c)) or bool({ENV, FORMAT} & set(reward_names(c))),
        'reward.functions need different names, and "env" and "format" are reserved. Rename one.',
    ),
    (
        lambda c: max(c.train.betas) >= 1,
        "train.betas must be below 1, or AdamW ignores the gradients. Set train.betas 0.9,0.95, for example.",
    ),
    (
        lambda c: c.algo.clip_low > 1 and c.algo.loss in ("ppo", "gspo", "cispo", "clip_cov"),
        "algo.clip_low {algo.clip_low} bounds the ratio below 0, which it never reaches. Give at most 1, which "
        "disables the bound.",
    ),
    (
        lambda c: c.train.epochs > 1 and c.algo.loss in ("reinforce", "gpg"),
        "algo.loss {algo.loss} has no importance ratio, so only the first pass over the samples is on-policy. Set "
        "train.epochs to 1, or choose ppo.",
    ),
    (
        lambda c: c.algo.truncated == "bootstrap" and not has_critic(c),
        "algo.truncated bootstrap uses the critic's value, and algo.advantage {algo.advantage} has no critic. Choose "
        "zero or drop, or gae.",
    ),
    (
        lambda c: c.algo.method != "archer" and c.train.mini_batch > c.rollout.groups * c.rollout.group_size,
        "train.mini_batch {train.mini_batch} is more than the trajectories of a step, rollout.groups {rollout.groups} "
        "x rollout.group_size {rollout.group_size}. Set train.mini_batch to at most {step_episodes}.",
    ),
    (
        lambda c: c.algo.filter_refill > 0 and c.algo.filter != "absolute",
        "algo.filter_refill samples until enough groups pass a threshold, and algo.filter {algo.filter} has none. "
        "Choose algo.filter absolute, or leave out algo.filter_refill.",
    ),
    (
        lambda c: c.algo.kl_target is not None and c.algo.kl_coef == 0,
        "algo.kl_target adapts algo.kl_coef, which is 0. Set algo.kl_coef to an initial value, such as 0.001.",
    ),
    (
        lambda c: c.algo.kl_coef > 0 and not kl_in_reward(c.algo) and c.algo.kl_estimator == "k1",
        "algo.kl_estimator k1 has an expected gradient of 0 and so no effect in the loss. Choose k2 or k3, or "
        "algo.kl_in reward.",
    ),
    (
        lambda c: c.algo.correction in ("decoupled", "truncated", "masked") and c.algo.old_logprobs == "sampler",
        "algo.correction {algo.correction} uses the ratio of the learner's to the sampler's probability, which is "
        "always 1 with algo.old_logprobs sampler. Choose algo.old_logprobs learner.",
    ),
    (
        lambda c: (c.algo.reject != "none" or c.algo.reject_veto > 0) and c.algo.old_logprobs == "sampler",
        "algo.reject and algo.reject_veto use the ratio of the learner's to the sampler's probability, which is "
        "always 1 with algo.old_logprobs sampler. Choose algo.old_logprobs learner.",
    ),
    (
        lambda c: c.algo.reject_low > c.algo.reject_high,
        "algo.reject_low {algo.reject_low} is above algo.reject_high {algo.reject_high}, so everything would be "
        "rejected. Swap them.",
    ),
    (
        lambda c: (
            c.algo.reject in ("turn", "sequence") and c.algo.reject_pool == "max" and c.algo.reject_statistic == "ratio"
        ),
        "algo.reject_pool max does not see ratios below 1. Choose algo.reject_statistic k2 or k3, which grow in both "
        "directions.",
    ),
    (
        lambda c: c.algo.loss == "clip_cov" and c.algo.cov_low >= c.algo.cov_high,
        "algo.cov_low {algo.cov_low} is not below algo.cov_high {algo.cov_high}, so clip_cov would select no token. "
        "Set algo.cov_low below {algo.cov_high}.",
    ),
    (
        lambda c: c.algo.loss in ("clip_cov", "kl_cov") and c.algo.cov_share == 0,
        "algo.cov_share is 0, so algo.loss {algo.loss} would select no token. Set algo.cov_share 0.0002, or "
        "algo.loss ppo.",
    ),
    (
        lambda c: c.algo.gamma_turn == "adaptive" and not advantage_traits(c).needs_critic,
        "algo.gamma_turn adaptive follows the critic's error, and algo.advantage {algo.advantage} has no critic. "
        "Choose bi_level_gae, turn_gae or step_gae, or a number.",
    ),
    (
        lambda c: c.algo.gamma_turn == "adaptive" and "gamma_turn" not in advantage_traits(c).reads,
        "algo.advantage {algo.advantage} does not discount by turn. Choose bi_level_gae, turn_gae or step_gae, or "
        "leave out algo.gamma_turn.",
    ),
    (
        lambda c: len(c.reward.weights) not in (0, 1 + len(c.reward.functions)),
        "reward.weights needs one number for the environment's reward and one for each of reward.functions. Give as "
        "many, or leave it out.",
    ),
    (
        lambda c: c.reward.combine != "sum" and c.algo.normalise != "identity",
        "reward.combine each and process already normalise. Leave out algo.normalise {algo.normalise}.",
    ),
)
"""(is it a conflict?, error message with the values of settings in braces)"""
