"""From a configuration to the things that run: the only place that names concrete ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turnwise.algos.advantages import ADVANTAGES, AdvantageParams
from turnwise.algos.aggregation import AGGREGATIONS
from turnwise.algos.kl import KL_ESTIMATORS
from turnwise.algos.losses import LOSSES, LossParams
from turnwise.config.schema import Config
from turnwise.core.protocols import Sampling
from turnwise.core.samples import Needs
from turnwise.engine.native.engine import NativeEngine
from turnwise.envs.kind import EnvKind
from turnwise.models.attention import ATTENTION
from turnwise.models.critic import HeadCritic, TrunkCritic
from turnwise.models.loading import LoadedModel, load_model
from turnwise.render.renderer import Renderer
from turnwise.rollout.collect import Collector
from turnwise.rollout.context import FullHistory
from turnwise.rollout.limits import Limits
from turnwise.train.learner import LocalLearner
from turnwise.train.objective import Objective
from turnwise.train.optimizer import Optimizer, OptimizerSettings, Schedule, mark_tables
from turnwise.train.update import UpdateSettings
from turnwise.train.warmup import warmed_tiny

CONTEXTS = {"full": FullHistory}


def model_loader(config: Config) -> Callable[[str], LoadedModel]:
    """Loads any model by name or folder, with the run's settings and the attention that engine and learner need."""
    settings = config.model

    def load(name: str) -> LoadedModel:
        return load_model(
            name,
            dtype=settings.dtype,
            device=settings.device,
            chat_template=settings.chat_template,
            attn_implementation=ATTENTION,
            seed=settings.warmup_seed,
        )

    return load


def load_policy(
    config: Config, kind: EnvKind, params: dict[str, Any], show: Callable[[int, int], None]
) -> tuple[LoadedModel, float]:
    """The model that a run starts from, and the seconds that its warm-up took."""
    load = model_loader(config)
    if config.model.name == "tiny" and config.model.warmup_steps:
        steps, seed = config.model.warmup_steps, config.model.warmup_seed
        return warmed_tiny(kind, params, steps=steps, seed=seed, load=load, show=show)
    return load(config.model.name), 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Players:
    """A policy ready to play: for training, and for evaluation."""

    renderer: Renderer
    engine: NativeEngine
    collector: Collector
    evaluator: Collector


def build_players(config: Config, kind: EnvKind, loaded: LoadedModel) -> Players:
    renderer = Renderer(loaded.tokenizer, loaded.stop_ids)
    engine = NativeEngine(
        loaded.model,
        slots=config.rollout.in_flight,
        stop_ids=renderer.stop_ids,
        decode=renderer.decode,
        deterministic=config.system.deterministic,
    )

    def collector(sampling: Sampling, run_seed: int) -> Collector:
        limits = Limits(sampling=sampling, max_tokens=config.rollout.max_tokens, timeout_s=config.rollout.timeout_s)
        return Collector(
            policy=engine,
            make_env=kind.make,
            context=CONTEXTS[config.context.mode](renderer),
            limits=limits,
            in_flight=config.rollout.in_flight,
            attempts=config.rollout.attempts,
            run_seed=run_seed,
        )

    shared = {"max_tokens": config.rollout.max_new_tokens, "stop": config.rollout.stop}
    training = Sampling(temperature=config.rollout.temperature, **shared)  # type: ignore[arg-type]
    evaluation = Sampling(
        temperature=config.eval.temperature,
        top_p=config.eval.top_p,
        top_k=config.eval.top_k,
        **shared,  # type: ignore[arg-type]
    )
    # Evaluations of all runs meet equal random numbers, so that what differs is the policy.
    return Players(
        renderer=renderer,
        engine=engine,
        collector=collector(training, config.seed),
        evaluator=collector(evaluation, 0),
    )


def build_learner(config: Config, model: Any) -> LocalLearner:
    algo, train = config.algo, config.train
    mark_tables(model)
    schedule = Schedule(
        kind=train.schedule,
        total_steps=train.steps,
        warmup_steps=train.warmup_steps,
        final_share=train.final_share,
    )

    def optimizer(parameters: Any, learning_rate: float, *, muon: bool) -> Optimizer:
        settings = OptimizerSettings(
            learning_rate=learning_rate,
            betas=train.betas,
            weight_decay=train.weight_decay,
            max_grad_norm=train.max_grad_norm,
            muon_learning_rate=train.muon_learning_rate if muon else None,
        )
        return Optimizer(list(parameters), settings, schedule.share)

    objective = Objective(
        loss=LOSSES[algo.loss],
        loss_params=LossParams(clip_low=algo.clip_low, clip_high=algo.clip_high, dual_clip=algo.dual_clip),
        entropy_coef=algo.entropy_coef,
        kl_coef=algo.kl_coef,
        kl_estimator=KL_ESTIMATORS[algo.kl_estimator],
        value_coef=algo.value_coef,
        value_clip=algo.value_clip,
    )
    critic = None
    if ADVANTAGES[algo.advantage].needs_critic:
        critic = TrunkCritic(model) if config.critic.kind == "trunk" else HeadCritic(model)
    return LocalLearner(
        model,
        objective,
        optimizer(model.parameters(), train.learning_rate, muon=train.optimizer == "muon"),
        critic=critic,
        critic_optimizer=None
        if critic is None
        else optimizer(critic.parameters(), config.critic.learning_rate, muon=False),
        critic_warmup_steps=config.critic.warmup_steps if critic is not None else 0,
    )


def update_settings(config: Config) -> UpdateSettings:
    algo, train = config.algo, config.train
    advantage = ADVANTAGES[algo.advantage]
    return UpdateSettings(
        advantage=advantage,
        advantage_params=AdvantageParams(gamma=algo.gamma, lam=algo.lam, whiten=algo.whiten),
        aggregation=AGGREGATIONS[algo.aggregation],
        constant_length=algo.constant_length,
        truncated=algo.truncated,
        needs=Needs(
            logprobs=algo.old_logprobs == "learner", values=advantage.needs_critic, ref_logprobs=algo.kl_coef > 0
        ),
        mini_batch=train.mini_batch,
        epochs=train.epochs,
        micro_tokens=train.micro_tokens,
        skip_idle=algo.entropy_coef == 0 and algo.kl_coef == 0 and not advantage.needs_critic,
        run_seed=config.seed,
    )
