"""Build what learns: the learner with its optimizers and critic, and the settings of estimate and update."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter

from turnwise.algos.critics import CriticSettings, HeadCriticSettings, TokenCriticSettings
from turnwise.algos.entropy import EntropyCoefficient
from turnwise.algos.exploration import COEF, MAX_COEF
from turnwise.algos.kl import KL_ESTIMATORS, KlCoefficient
from turnwise.algos.settings import AlgoConfig
from turnwise.algos.turn_discount import AdaptiveDiscount
from turnwise.config.training import Linear, Muon, TrainConfig
from turnwise.core.errors import UserError
from turnwise.core.learner import Needs
from turnwise.core.protocols import EngineControl, ValueEngine
from turnwise.data.samples import PARTS, AllowedSets, TokenRule, part_rule, sampled
from turnwise.models.critic import HeadCritic, TrunkCritic
from turnwise.models.layers import compile_unfused_layers, copy_model, recompute_layers
from turnwise.models.loading.lora import copy_adapter, has_adapter
from turnwise.models.memory.plan import MemoryPlan
from turnwise.models.sharding import join_ranks, share_skeleton
from turnwise.rewards.settings import RewardConfig
from turnwise.rollout.settings import RolloutConfig
from turnwise.run.build import reward_weights
from turnwise.run.resources import MICRO_TOKENS, plan_without_limits
from turnwise.text.suggestions import suggest
from turnwise.training.coefficients import AdaptiveCoefficients
from turnwise.training.estimators.on_policy import EstimateSettings
from turnwise.training.estimators.token_rewards import RewardSettings
from turnwise.training.learner import LocalLearner
from turnwise.training.objective import Objective
from turnwise.training.optimizer import Optimizer, OptimizerSettings, Schedule, mark_embeddings
from turnwise.training.sharded import ShardedLearner
from turnwise.training.sharded_optimizer import ShardedOptimizer
from turnwise.training.update import UpdateSettings
from turnwise.user_code.references import load_function


def reward_placement(algo: AlgoConfig) -> str:
    return algo.placement or ("trajectory" if algo.advantage.outcome_minus_kl else "turn")


def kl_estimator(algo: AlgoConfig) -> str:
    return algo.kl_estimator or ("k1" if algo.kl_is_reward else "k3")


def build_learner(
    algo: AlgoConfig, critic: CriticSettings, train: TrainConfig, model: Any, plan: MemoryPlan | None = None
) -> LocalLearner:
    """Build the learner with its critic and optimizers. `plan` None: the settings without a memory plan."""
    plan = plan or plan_without_limits(train)
    if plan.recompute:
        recompute_layers(model)  # before a critic copies them
    mark_embeddings(model)
    schedule, values = build_schedule(train), _build_critic(algo, critic, model)
    reference = reference_adapter = None
    if algo.needs_reference and has_adapter(model):
        reference_adapter = copy_adapter(model)
    elif algo.needs_reference:
        reference = copy_model(model).requires_grad_(False)
    return LocalLearner(
        model,
        build_objective(algo, critic),
        build_optimizer(train, model.parameters(), train.learning_rate, schedule, plan, muon=True),
        kl_coef=0.0 if algo.kl_is_reward else algo.kl_coef,
        entropy_coef=algo.entropy_coef,
        reference=reference,
        reference_adapter=reference_adapter,
        critic=values,
        critic_optimizer=None
        if values is None
        else build_optimizer(train, values.parameters(), critic.learning_rate, schedule, plan),
        critic_warmup_steps=critic.warmup_steps if algo.has_any_critic else 0,
    )


def build_sharded_learner(
    algo: AlgoConfig,
    critic: CriticSettings,
    train: TrainConfig,
    model: Any | None,
    plan: MemoryPlan | None = None,
    *,
    device: torch.device,
    compiles: bool,
) -> ShardedLearner:
    """Build the learner of this rank. Every rank of the default process group calls it, with the same plan.

    Rank 0 alone passes the loaded model, on any device; it is left unchanged and may be dropped afterwards. With
    optimizer states on the host, parameters are offloaded too, and gradients are reduced after each micro-batch.
    `compiles`: compile the layers, on a GPU.
    """
    plan = plan or plan_without_limits(train)
    sharding = join_ranks(device, offload=plan.optimizer_on_host)
    skeleton = share_skeleton(model, sharding)
    plain = copy_model(skeleton)
    if plan.recompute:
        recompute_layers(plain)
    policy, values, schedule = copy_model(plain), _build_critic(algo, critic, plain), build_schedule(train)
    sharding.shard_model(policy, model)
    mark_embeddings(policy)
    reference = None
    if algo.needs_reference and not has_adapter(plain):
        reference = plain.requires_grad_(False)
        sharding.shard_model(reference, model)
    if values is not None:
        sharding.shard_critic(values, model)
    if compiles and sharding.device.type == "cuda":
        trunk = values.trunk if isinstance(values, TrunkCritic) else None
        for network in (policy, reference, trunk):
            if network is not None:
                compile_unfused_layers(network)
    rounded = any(parameter.requires_grad and parameter.dtype != torch.float32 for parameter in skeleton.parameters())

    def optimizer(module: Any, settings: OptimizerSettings, *, saves_weights: bool) -> ShardedOptimizer:
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return ShardedOptimizer(trained, settings, schedule.share, sharding=sharding, saves_weights=saves_weights)

    return ShardedLearner(
        policy,
        build_objective(algo, critic),
        optimizer(policy, _optimizer_settings(train, train.learning_rate, muon=True), saves_weights=rounded),
        skeleton=skeleton,
        sharding=sharding,
        reduce_once_per_step=not plan.optimizer_on_host,
        kl_coef=0.0 if algo.kl_is_reward else algo.kl_coef,
        entropy_coef=algo.entropy_coef,
        reference=reference,
        reference_adapter=copy_adapter(policy) if algo.needs_reference and has_adapter(policy) else None,
        critic=values,
        critic_optimizer=None
        if values is None
        else optimizer(values, _optimizer_settings(train, critic.learning_rate), saves_weights=False),
        critic_warmup_steps=critic.warmup_steps if values is not None else 0,
    )


def build_schedule(train: TrainConfig) -> Schedule:
    return Schedule(
        kind=train.schedule.kind,
        total_steps=train.steps,
        warmup_steps=train.warmup_steps,
        final_share=train.schedule.final_share if isinstance(train.schedule, Linear) else 0.0,
    )


def _build_critic(algo: AlgoConfig, critic: CriticSettings, model: Any) -> TrunkCritic | HeadCritic | None:
    if not algo.needs_critic:
        return None
    return HeadCritic(model) if isinstance(critic, HeadCriticSettings) else TrunkCritic(model)


def build_optimizer(
    train: TrainConfig,
    parameters: Iterable[Parameter],
    learning_rate: float,
    schedule: Schedule,
    plan: MemoryPlan,
    *,
    muon: bool = False,
) -> Optimizer:
    """Build the optimizer of the parameters that require gradients."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    settings = _optimizer_settings(train, learning_rate, muon=muon)
    return Optimizer(trained, settings, schedule.share, on_host=plan.optimizer_on_host)


def _optimizer_settings(train: TrainConfig, learning_rate: float, *, muon: bool = False) -> OptimizerSettings:
    return OptimizerSettings(
        learning_rate=learning_rate,
        weight_decay=train.optimizer.weight_decay,
        max_grad_norm=train.max_grad_norm,
        muon_learning_rate=train.optimizer.learning_rate if muon and isinstance(train.optimizer, Muon) else None,
    )


def share_value_head(rollout: RolloutConfig, engine: EngineControl, learner: LocalLearner) -> None:
    """Let the engine compute the values of a critic on the policy's trunk while it samples, if it can.

    Not in asynchronous training: the values would be those of older weights.
    """
    if rollout.max_staleness:
        return
    if isinstance(engine, ValueEngine) and isinstance(learner.critic, HeadCritic):
        engine.set_value_head(learner.critic)


def build_objective(algo: AlgoConfig, critic: CriticSettings) -> Objective:
    of_tokens = critic if isinstance(critic, TokenCriticSettings) else None
    return Objective(algo=algo, critic_settings=of_tokens, kl_estimator=KL_ESTIMATORS[kl_estimator(algo)])


def update_settings(
    algo: AlgoConfig, critic: CriticSettings, train: TrainConfig, seed: int, micro_tokens: int = MICRO_TOKENS
) -> UpdateSettings:
    only_advantages = (
        algo.entropy_coef == 0 and algo.kl_coef == 0 and not algo.needs_critic and not algo.loss.adds_penalty
    )
    return UpdateSettings(
        objective=build_objective(algo, critic),
        train=train,
        micro_tokens=micro_tokens,
        skip_idle=only_advantages,
        run_seed=seed,
    )


def estimate_settings(
    algo: AlgoConfig, reward: RewardConfig, micro_tokens: int = MICRO_TOKENS, allowed_sets: AllowedSets | None = None
) -> EstimateSettings:
    return EstimateSettings(
        algo=algo,
        rewards=RewardSettings(
            placement=reward_placement(algo),
            normalise=algo.normalise,
            process=reward.combine == "process",
            separate=reward_weights(reward) if reward.combine == "each" else None,
        ),
        advantage_tokens=token_rule(algo.advantage_tokens, "algo.advantage_tokens"),
        loss_tokens=token_rule(algo.loss_tokens, "algo.loss_tokens"),
        kl_in_reward=KL_ESTIMATORS[kl_estimator(algo)] if algo.kl_coef > 0 and algo.kl_is_reward else None,
        needs=Needs(
            policy_logprobs=algo.old_logprobs == "learner",
            values=algo.needs_critic,
            ref_logprobs=algo.needs_reference,
        ),
        micro_tokens=micro_tokens,
        allowed_sets=allowed_sets,
    )


def build_coefficients(algo: AlgoConfig) -> AdaptiveCoefficients:
    return AdaptiveCoefficients(
        kl=KlCoefficient(value=algo.kl_coef, target=algo.kl_target),
        entropy=EntropyCoefficient(value=algo.entropy_coef, least=algo.entropy_coef, target=algo.entropy_target),
        discount=AdaptiveDiscount() if getattr(algo.advantage, "gamma_turn", None) == "adaptive" else None,
        exploration=_exploration_coefficient(algo.action_entropy_target),
    )


def _exploration_coefficient(target: float | None) -> EntropyCoefficient | None:
    return None if target is None else EntropyCoefficient(value=COEF, least=COEF, target=target, most=MAX_COEF)


def token_rule(value: str, setting: str) -> TokenRule:
    """Return the rule of "sampled", of parts joined by "+", or of FILE.py:function. Errors name the setting."""
    if value == "sampled":
        return sampled
    if ":" in value:
        return load_function(value, setting)
    names = value.split("+")
    if unknown := [name for name in names if name not in PARTS]:
        raise UserError(
            f'{setting} "{value}": unknown part "{unknown[0]}":{suggest(unknown[0], PARTS)} (write "sampled", parts '
            'joined by "+" such as "prediction+answer", or FILE.py:function).'
        )
    return part_rule(frozenset(names))
