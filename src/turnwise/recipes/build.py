"""From a configuration to a model and those who play with it."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter

from turnwise.algos.advantage_types import Advantage
from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.kl import KL_ESTIMATORS, KlCoefficient
from turnwise.algos.losses import LOSSES
from turnwise.algos.turn_discount import AdaptiveDiscount
from turnwise.config.algorithm import AlgoConfig
from turnwise.config.schema import Config, TrainConfig
from turnwise.core.errors import UserError
from turnwise.core.protocols import Engine, EngineControl, Sampling
from turnwise.core.references import load_function
from turnwise.core.samples import Needs
from turnwise.data.samples import TOKEN_RULES, TokenRule
from turnwise.engine.engines import ENGINES, EngineOptions
from turnwise.engine.native.engine import NativeEngine
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.critic import HeadCritic, TrunkCritic
from turnwise.models.layers import compile_layers, compile_unfused_layers, copy_model, recompute_layers
from turnwise.models.loading.catalogue import WARMED_UP
from turnwise.models.loading.load import LoadedModel, device_of, load_model, resolve_device
from turnwise.models.loading.lora import (
    RUN_BASE,
    LoraSettings,
    add_lora,
    base_model_of,
    copy_adapter,
    has_adapter,
    set_base_model,
)
from turnwise.models.loading.save import atomic_folder, save_model
from turnwise.models.memory.plan import MemoryPlan
from turnwise.models.sharding import join_ranks, share_skeleton
from turnwise.recipes.agents import build_agent_collector, build_gateway
from turnwise.recipes.contexts import build_context
from turnwise.recipes.environment_mix import EnvironmentMix
from turnwise.recipes.resources import MICRO_TOKENS, plan_without_limits
from turnwise.recipes.sources import use_own_adapter
from turnwise.record.images import IMAGES_FOLDER
from turnwise.render.renderer import Renderer
from turnwise.rewards.factory import build_group_judges, judge_weights
from turnwise.rewards.functions import trajectory_reward
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.scoring import ENV, RewardSet
from turnwise.rollout.collect import Collector, GroupCollector
from turnwise.rollout.episode import Limits
from turnwise.training.estimate import AdaptiveCoefficients, EstimateSettings, RewardSettings
from turnwise.training.learner import LocalLearner
from turnwise.training.objective import Objective, needs_reference
from turnwise.training.optimizer import Optimizer, OptimizerSettings, Schedule, mark_embeddings
from turnwise.training.sharded import ShardedLearner
from turnwise.training.sharded_optimizer import ShardedOptimizer
from turnwise.training.update import UpdateSettings
from turnwise.training.warmup import load_warmed_up

if TYPE_CHECKING:  # its packages are optional
    from turnwise.gateway.server import Gateway


def model_loader(config: Config) -> Callable[[str], LoadedModel]:
    """Return a function that loads a model by name or folder, with the run's settings and the engine's attention."""
    settings = config.model

    def load(name: str) -> LoadedModel:
        return load_model(
            name,
            dtype=settings.dtype,
            device=settings.device,
            chat_template=settings.chat_template,
            attn_implementation=ATTENTION,
            seed=settings.warmup_seed,
            train_vision=settings.train_vision,
        )

    return load


def load_policy(
    config: Config, environments: EnvironmentMix, show_warmup: Callable[[int, int], None], run: Path | None = None
) -> tuple[LoadedModel, float]:
    """Load the model that a run starts from; return it and the seconds of its warm-up.

    The folder `run` keeps a copy of a warmed-up tiny, and of the base model of an adapter, so that it can be resumed
    without the cache and without the run that trained the adapter.
    """
    load_any = model_loader(config)

    def load(name: str) -> LoadedModel:
        loaded = load_any(name)
        check_sees_images(loaded, environments)
        return loaded

    base = None if run is None else run / RUN_BASE
    seconds = 0.0
    can_play = bool(environments.specs) and not environments.has_agent
    if config.model.name in WARMED_UP and config.model.warmup_steps and can_play:
        if base is not None and base.is_dir():
            loaded = load(str(base))
        else:
            loaded, seconds = load_warmed_up(
                config.model.name,
                environments.with_params,
                steps=config.model.warmup_steps,
                seed=config.model.warmup_seed,
                load=load,
                show=show_warmup,
            )
            if base is not None:
                save_model(loaded.model, loaded.tokenizer, base)
                loaded = replace(loaded, name=str(base))
    else:
        loaded = load((config if run is None else use_own_adapter(config, run)).model.name)
        if base is not None and has_adapter(loaded.model):
            _keep_base_of_adapter(loaded, base)
    lora = config.lora
    if lora.rank and not has_adapter(loaded.model):  # a checkpoint of a LoRA run already has its adapter
        alpha = 2.0 * lora.rank if lora.alpha is None else lora.alpha
        settings = LoraSettings(rank=lora.rank, alpha=alpha, targets=lora.targets, seed=config.seed)
        add_lora(loaded.model, loaded.name, settings)
    if config.system.compile and device_of(loaded.model).type == "cuda":
        compile_layers(loaded.model)
    if run is not None and loaded.images is not None:
        loaded.images.store.keep_in(run / IMAGES_FOLDER)
    return loaded, seconds


def check_sees_images(loaded: LoadedModel, environments: EnvironmentMix) -> None:
    """Raise UserError if an environment shows images to a model that reads text only, before any work is done."""
    if loaded.images is not None:
        return
    for spec, params in environments.with_params:
        if spec.shows_images(params):
            other = ", or set env.params.observation text" if "observation" in spec.params_model.model_fields else ""
            raise UserError(
                f"{spec.name} shows images, and the model {loaded.name} reads text only. Choose a vision-language "
                f"model with --model.name{other}."
            )


def _keep_base_of_adapter(loaded: LoadedModel, base: Path) -> None:
    """Copy the base model of another run's adapter to `base`, if that run keeps it in its own folder."""
    source = Path(base_model_of(Path(loaded.name).expanduser()))
    if source.name != RUN_BASE or not (source.parent / "config.toml").is_file():
        return
    if not base.is_dir():
        with atomic_folder(base) as aside:
            shutil.copytree(source, aside, dirs_exist_ok=True)
    set_base_model(loaded.model, str(base))


def build_engine(config: Config, model: Any, renderer: Renderer, *, pages: int | None = None) -> Engine:
    """Build the engine of engine.kind. `pages` of the KV cache on a GPU; None: system.cache_share decides."""
    options = EngineOptions(
        slots=config.rollout.in_flight,
        max_tokens=config.rollout.max_tokens,
        decode_steps=config.system.decode_steps,
        cache_share=config.system.cache_share,
        pages=pages,
        settings=config.engine,
    )
    return ENGINES[config.engine.kind](model, renderer, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStack:
    """A policy with its renderer, its engine and the collectors for training, greedy baselines and evaluation."""

    renderer: Renderer
    engine: EngineControl
    collector: GroupCollector
    greedy: GroupCollector
    evaluator: GroupCollector
    pages: int | None
    """Pages of the engine's KV cache; None: not planned."""
    gateway: "Gateway | None" = None
    """Through which an agent calls the engine. Open while episodes run."""

    def open(self) -> AbstractAsyncContextManager[object]:
        """Open what episodes need besides the engine."""
        return nullcontext() if self.gateway is None else self.gateway


def build_renderer(config: Config, loaded: LoadedModel) -> Renderer:
    return Renderer(loaded.tokenizer, loaded.stop_ids, config.rollout.prefix, loaded.images)


def build_policy_stack(
    config: Config,
    environments: EnvironmentMix,
    loaded: LoadedModel,
    pages: int | None = None,
    *,
    run: Path | None = None,
) -> PolicyStack:
    """Build the stack. In asynchronous training a native engine samples from its own copy of the weights.

    `run`: folder in which the gateway of an agent keeps its calls.
    """
    renderer = build_renderer(config, loaded)
    copies = config.rollout.max_staleness > 0 and config.engine.kind == "native"
    model = copy_model(loaded.model).requires_grad_(False) if copies else loaded.model
    engine = build_engine(config, model, renderer, pages=pages)
    training = training_sampling(config)
    limits = episode_limits(config, training)
    gateway = build_gateway(config, engine, renderer, limits, run) if environments.has_agent else None

    def collector(sampling: Sampling, run_seed: int) -> GroupCollector:
        limits = episode_limits(config, sampling)
        if gateway is not None:
            return build_agent_collector(config, gateway, limits, run_seed)
        return Collector(
            policy=engine,
            make_env=environments.make,
            context=build_context(config, renderer),
            limits=limits,
            in_flight=config.rollout.in_flight,
            attempts=config.rollout.attempts,
            run_seed=run_seed,
        )

    return PolicyStack(
        renderer=renderer,
        engine=engine,
        collector=collector(training, config.seed),
        greedy=collector(replace(training, temperature=0.0), config.seed),
        evaluator=collector(evaluation_sampling(config), 0),  # all runs are evaluated with the same random numbers
        pages=pages,
        gateway=gateway,
    )


def episode_limits(config: Config, sampling: Sampling) -> Limits:
    return Limits(sampling=sampling, max_tokens=config.rollout.max_tokens, timeout_s=config.rollout.timeout_s)


def training_sampling(config: Config) -> Sampling:
    rollout = config.rollout
    return Sampling(temperature=rollout.temperature, max_tokens=rollout.max_new_tokens, stop=rollout.stop)


def evaluation_sampling(config: Config) -> Sampling:
    return Sampling(
        max_tokens=config.rollout.max_new_tokens,
        temperature=config.eval.temperature,
        top_p=config.eval.top_p,
        top_k=config.eval.top_k,
        stop=config.rollout.stop,
    )


def reward_placement(algo: AlgoConfig) -> str:
    return algo.placement or ("trajectory" if ADVANTAGES[algo.advantage].outcome_minus_kl else "turn")


def kl_in_reward(algo: AlgoConfig) -> bool:
    """Return True if the KL penalty is part of the reward, False if it is part of the loss."""
    return algo.kl_in == "reward" or (algo.kl_in is None and ADVANTAGES[algo.advantage].outcome_minus_kl)


def kl_estimator(algo: AlgoConfig) -> str:
    return algo.kl_estimator or ("k1" if kl_in_reward(algo) else "k3")


def advantage_traits(config: Config) -> Advantage:
    """Return what the estimator of algo.advantage needs. ArCHer replaces it, and needs no groups or greedy episodes."""
    if config.algo.method == "on_policy":
        return ADVANTAGES[config.algo.advantage]
    baseline = config.algo.method == "archer" and config.archer.token_baseline
    return replace(ADVANTAGES["reinforce"], needs_critic=baseline, reads=("gamma_turn",))


def has_critic(config: Config) -> bool:
    """Return whether a critic is trained, of tokens or of whole utterances."""
    return config.algo.method != "on_policy" or advantage_traits(config).needs_critic


def build_learner(config: Config, model: Any, plan: MemoryPlan | None = None) -> LocalLearner:
    """Build the learner with its critic and optimizers. `plan` None: the settings without a memory plan."""
    algo, train, plan = config.algo, config.train, plan or plan_without_limits(config)
    if plan.recompute:
        recompute_layers(model)  # before a critic copies them
    mark_embeddings(model)
    schedule = build_schedule(train)
    critic = _critic(config, model)
    keeps_reference = needs_reference(algo)
    return LocalLearner(
        model,
        build_objective(config.algo),
        build_optimizer(train, model.parameters(), train.learning_rate, schedule, plan, muon=train.optimizer == "muon"),
        kl_coef=0.0 if kl_in_reward(algo) else algo.kl_coef,
        reference=copy_model(model).requires_grad_(False) if keeps_reference and not has_adapter(model) else None,
        reference_adapter=copy_adapter(model) if keeps_reference and has_adapter(model) else None,
        critic=critic,
        critic_optimizer=None
        if critic is None
        else build_optimizer(train, critic.parameters(), config.critic.learning_rate, schedule, plan),
        critic_warmup_steps=config.critic.warmup_steps if has_critic(config) else 0,
    )


def build_sharded_learner(config: Config, model: Any | None, plan: MemoryPlan | None = None) -> ShardedLearner:
    """Build the learner of this rank. Every rank of the default process group calls it, with the same plan.

    Rank 0 alone passes the loaded model, on any device; it is left unchanged and may be dropped afterwards. With
    optimizer states on the host, parameters are offloaded too, and gradients are reduced after each micro-batch.
    """
    algo, train, plan = config.algo, config.train, plan or plan_without_limits(config)
    sharding = join_ranks(resolve_device(config.model.device), offload=plan.optimizer_on_host)
    skeleton = share_skeleton(model, sharding)
    plain = copy_model(skeleton)
    if plan.recompute:
        recompute_layers(plain)
    policy, critic, schedule = copy_model(plain), _critic(config, plain), build_schedule(train)
    sharding.shard_model(policy, model)
    mark_embeddings(policy)
    keeps_reference, reference = needs_reference(algo), None
    if keeps_reference and not has_adapter(plain):
        reference = plain.requires_grad_(False)
        sharding.shard_model(reference, model)
    if critic is not None:
        sharding.shard_critic(critic, model)
    if config.system.compile and sharding.device.type == "cuda":
        trunk = critic.trunk if isinstance(critic, TrunkCritic) else None
        for each in (policy, reference, trunk):
            if each is not None:
                compile_unfused_layers(each)
    rounded = any(each.requires_grad and each.dtype != torch.float32 for each in skeleton.parameters())

    def optimizer(module: Any, settings: OptimizerSettings, *, saves_weights: bool) -> ShardedOptimizer:
        trained = [each for each in module.parameters() if each.requires_grad]
        return ShardedOptimizer(trained, settings, schedule.share, sharding=sharding, saves_weights=saves_weights)

    muon = train.optimizer == "muon"
    return ShardedLearner(
        policy,
        build_objective(algo),
        optimizer(policy, _optimizer_settings(train, train.learning_rate, muon=muon), saves_weights=rounded),
        skeleton=skeleton,
        sharding=sharding,
        accumulates_whole=not plan.optimizer_on_host,
        kl_coef=0.0 if kl_in_reward(algo) else algo.kl_coef,
        reference=reference,
        reference_adapter=copy_adapter(policy) if keeps_reference and has_adapter(policy) else None,
        critic=critic,
        critic_optimizer=None
        if critic is None
        else optimizer(critic, _optimizer_settings(train, config.critic.learning_rate), saves_weights=False),
        critic_warmup_steps=config.critic.warmup_steps if critic is not None else 0,
    )


def build_schedule(train: TrainConfig) -> Schedule:
    return Schedule(
        kind=train.schedule,
        total_steps=train.steps,
        warmup_steps=train.warmup_steps,
        final_share=train.final_share,
    )


def _critic(config: Config, model: Any) -> TrunkCritic | HeadCritic | None:
    if not advantage_traits(config).needs_critic:
        return None
    return TrunkCritic(model) if config.critic.kind == "trunk" else HeadCritic(model)


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
        betas=train.betas,
        weight_decay=train.weight_decay,
        max_grad_norm=train.max_grad_norm,
        muon_learning_rate=train.muon_learning_rate if muon else None,
    )


def share_value_head(config: Config, engine: EngineControl, learner: LocalLearner) -> None:
    """Let a native engine compute the values of a critic on the policy's trunk while it samples.

    Not in asynchronous training: the values would be those of older weights.
    """
    if config.rollout.max_staleness:
        return
    if isinstance(engine, NativeEngine) and isinstance(learner.critic, HeadCritic):
        engine.set_value_head(learner.critic)


def build_objective(algo: AlgoConfig) -> Objective:
    return Objective(algo=algo, kl_estimator=KL_ESTIMATORS[kl_estimator(algo)])


def update_settings(config: Config, micro_tokens: int = MICRO_TOKENS) -> UpdateSettings:
    algo = config.algo
    only_advantages = (
        algo.entropy_coef == 0
        and algo.kl_coef == 0
        and not advantage_traits(config).needs_critic
        and not LOSSES[algo.loss].adds_penalty
    )
    return UpdateSettings(
        objective=build_objective(config.algo),
        train=config.train,
        micro_tokens=micro_tokens,
        skip_idle=only_advantages,
        run_seed=config.seed,
    )


def estimate_settings(config: Config, micro_tokens: int = MICRO_TOKENS) -> EstimateSettings:
    algo, advantage = config.algo, advantage_traits(config)
    return EstimateSettings(
        algo=algo,
        rewards=RewardSettings(
            placement=reward_placement(algo),
            normalise=algo.normalise,
            normalise_over=algo.normalise_over,
            process=config.reward.combine == "process",
            each=reward_weights(config) if config.reward.combine == "each" else None,
        ),
        advantage_tokens=token_rule(algo.advantage_tokens),
        loss_tokens=token_rule(algo.loss_tokens),
        kl_in_reward=KL_ESTIMATORS[kl_estimator(algo)] if algo.kl_coef > 0 and kl_in_reward(algo) else None,
        needs=Needs(
            logprobs=algo.old_logprobs == "learner",
            values=advantage.needs_critic,
            ref_logprobs=needs_reference(algo),
        ),
        micro_tokens=micro_tokens,
    )


def build_coefficients(config: Config) -> AdaptiveCoefficients:
    algo = config.algo
    return AdaptiveCoefficients(
        kl=KlCoefficient(value=algo.kl_coef, target=algo.kl_target, horizon=algo.kl_horizon),
        discount=AdaptiveDiscount() if algo.gamma_turn == "adaptive" else None,
    )


def token_rule(name: str) -> TokenRule:
    """Return a rule of TOKEN_RULES, or load FILE.py:function."""
    if name in TOKEN_RULES:
        return TOKEN_RULES[name]
    return load_function(name, "algo.loss_tokens or algo.advantage_tokens", TOKEN_RULES)


def reward_names(config: Config) -> list[str]:
    """Return the names of reward.functions, in order."""
    return [function.rpartition(":")[2] for function in config.reward.functions]


def reward_weights(config: Config) -> dict[str, float]:
    """Return the weights by name: of the environment's reward, then of functions and judges."""
    names = [ENV, *reward_names(config)]
    weights = dict(zip(names, config.reward.weights or [1.0] * len(names), strict=True))
    return weights | judge_weights(config.reward.judges)


def build_rewards(config: Config, judges: JudgeRegistry, decode: Callable[[Sequence[int]], str]) -> RewardSet:
    """Build all rewards of a run. `decode` gives judges the text of token ids."""
    loaded = [trajectory_reward(load_function(each, "reward.functions")) for each in config.reward.functions]
    functions = dict(zip(reward_names(config), loaded, strict=True))
    return RewardSet(
        format_penalty=config.reward.format_penalty,
        functions=functions,
        judges=build_group_judges(config.reward.judges, judges, decode, taken=tuple(functions)),
        weights=reward_weights(config),
        timeout_s=config.rollout.timeout_s,
    )
