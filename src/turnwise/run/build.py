"""Build what plays: the model, its engine, the policy with its environments, and the rewards."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.config.recording import EvalConfig
from turnwise.config.schema import Config
from turnwise.core.protocols import Engine, EngineControl, Policy, Sampling
from turnwise.engine.options import EngineOptions
from turnwise.engine.settings import EngineSettings
from turnwise.envs.agent.harness import Harness
from turnwise.files.disk import atomic_folder
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.layers import compile_layers, copy_model
from turnwise.models.loading.catalogue import SMOLLM2_VISION, WARMED_UP
from turnwise.models.loading.load import LoadedModel, device_of, load_model
from turnwise.models.loading.lora import (
    RUN_BASE,
    LoraPart,
    LoraSettings,
    add_lora,
    base_model_of,
    has_adapter,
    set_base_model,
)
from turnwise.models.loading.save import save_model
from turnwise.models.settings import ModelConfig
from turnwise.models.vision.encoder import trains_vision
from turnwise.record.images import IMAGES_FOLDER
from turnwise.render.renderer import Renderer
from turnwise.rewards.factory import build_group_judges, judge_weights
from turnwise.rewards.functions import build_reward
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.scoring import ENV, RewardSet
from turnwise.rewards.settings import RewardConfig
from turnwise.rollout.collect import Collector, GroupCollector
from turnwise.rollout.episode import Limits
from turnwise.rollout.settings import RETRY_TEMPERATURE, RolloutConfig
from turnwise.run.agent_warmup import load_random_reply, warm_up_agent
from turnwise.run.agents import build_agent_collector, build_gateway
from turnwise.run.build_context import build_context
from turnwise.run.check_images import check_engine_reads_images, check_sees_images
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.find_model import use_own_adapter
from turnwise.run.roles import build_frozen_policies, build_roles_collector
from turnwise.training.warmup import has_warmup, load_warmed_up

if TYPE_CHECKING:  # its packages are optional
    from turnwise.gateway.server import Gateway

LoadModel = Callable[[str], LoadedModel]
"""Loads a model by name or folder."""


def model_loader(settings: ModelConfig) -> LoadModel:
    """Return a function that loads a model by name or folder, with the run's settings and the engine's attention.

    Unless the settings say otherwise, a vision tower is frozen if the model of the settings has a trained one.
    """
    train_vision = settings.name == SMOLLM2_VISION if settings.train_vision is None else bool(settings.train_vision)

    def load(name: str) -> LoadedModel:
        return load_model(
            name,
            dtype=settings.dtype,
            device=settings.device,
            chat_template=settings.chat_template,
            attn_implementation=ATTENTION,
            train_vision=train_vision,
        )

    return load


def load_policy(
    config: Config,
    environments: EnvironmentMix,
    show_warmup: Callable[[int, int], None],
    run: Path | None = None,
    check: Callable[[LoadedModel], None] = lambda loaded: None,
) -> tuple[LoadedModel, float]:
    """Load the model that a run starts from; return it and the seconds of its warm-up.

    The folder `run` keeps a copy of a warmed-up model, and of the base model of an adapter, so that it can be resumed
    without the cache and without the run that trained the adapter. `check`: called with the model before its warm-up.
    """
    check_engine_reads_images(config.engine, environments)
    load = _checked_loader(config.model, environments, check)
    base = None if run is None else run / RUN_BASE
    if config.model.warmup_steps and _is_warmed_up(config, environments):
        loaded, seconds = _load_warmed_up_once(config, environments, load, show_warmup, base)
    else:
        loaded, seconds = load((config if run is None else use_own_adapter(config, run)).model.name), 0.0
        if base is not None and has_adapter(loaded.model):
            _keep_base_of_adapter(loaded, base)
    _add_adapter(config, loaded)
    if config.system.compile and device_of(loaded.model).type == "cuda":
        compile_layers(loaded.model)
    if run is not None and loaded.images is not None:
        loaded.images.store.keep_in(run / IMAGES_FOLDER)
    return loaded, seconds


def _checked_loader(
    model: ModelConfig, environments: EnvironmentMix, check: Callable[[LoadedModel], None]
) -> LoadModel:
    """Return a loader that checks each model as soon as it is loaded, before a warm-up takes minutes."""
    load_any = model_loader(model)

    def load(name: str) -> LoadedModel:
        loaded = load_any(name)
        check_sees_images(loaded, environments)
        check(loaded)
        return loaded

    return load


def _load_warmed_up_once(
    config: Config,
    environments: EnvironmentMix,
    load: LoadModel,
    show_warmup: Callable[[int, int], None],
    base: Path | None,
) -> tuple[LoadedModel, float]:
    """Return the warmed-up model and the seconds that took; the folder `base` keeps it for a resumed run."""
    if base is None:
        return _warm_up(config, environments, load, show_warmup)
    if base.is_dir():
        return load(str(base)), 0.0
    loaded, seconds = _warm_up(config, environments, load, show_warmup)
    save_model(loaded.model, loaded.tokenizer, base)
    return replace(loaded, name=str(base)), seconds


def _add_adapter(config: Config, loaded: LoadedModel) -> None:
    """Add the LoRA adapter of the settings, unless the model is a checkpoint that already has one."""
    lora = config.lora
    if not lora.rank or has_adapter(loaded.model):
        return
    alpha = 2.0 * lora.rank if lora.alpha is None else lora.alpha
    part: LoraPart = "both" if trains_vision(loaded.model) else "language"
    if config.model.train_vision == "only":
        part = "vision"
    settings = LoraSettings(rank=lora.rank, alpha=alpha, targets=lora.targets, seed=config.seed, part=part)
    add_lora(loaded.model, loaded.name, settings)


def _is_warmed_up(config: Config, environments: EnvironmentMix) -> bool:
    if environments.has_agent:
        return load_random_reply(config.agent) is not None and config.model.name in WARMED_UP
    return bool(environments.specs) and has_warmup(config.model.name, environments.with_params)


def _warm_up(
    config: Config, environments: EnvironmentMix, load: LoadModel, show: Callable[[int, int], None]
) -> tuple[LoadedModel, float]:
    """Return the warmed-up model and the seconds that took. A model of an agent is not cached, since an agent may
    depend on anything."""
    reply = load_random_reply(config.agent)
    if reply is None:
        return load_warmed_up(
            config.model.name,
            environments.with_params,
            steps=config.model.warmup_steps,
            load=load,
            show=show,
            single_turns=config.context.shows_current_turn_only,
            timeout_s=config.rollout.timeout_s,
        )
    began, loaded = time.perf_counter(), load(config.model.name)
    warm_up_agent(config, environments, loaded, reply, show)
    return loaded, time.perf_counter() - began


def _keep_base_of_adapter(loaded: LoadedModel, base: Path) -> None:
    """Copy the base model of another run's adapter to `base`, if that run keeps it in its own folder."""
    source = Path(base_model_of(Path(loaded.name).expanduser()))
    if source.name != RUN_BASE or not (source.parent / "config.toml").is_file():
        return
    if not base.is_dir():
        with atomic_folder(base) as aside:
            shutil.copytree(source, aside, dirs_exist_ok=True)
    set_base_model(loaded.model, str(base))


def build_engine(
    engine: EngineSettings, rollout: RolloutConfig, model: Any, renderer: Renderer, *, pages: int | None = None
) -> Engine:
    """Build the engine. `pages`: size of the KV cache on a GPU. None: as engine.gpu_memory_utilization allows."""
    options = EngineOptions(slots=rollout.in_flight, max_tokens=rollout.max_tokens, pages=pages)
    return engine.build(model, renderer, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStack:
    """A policy with its renderer, its engine and the collectors for training, greedy baselines and evaluation."""

    renderer: Renderer
    engine: EngineControl
    collector: GroupCollector
    greedy: GroupCollector
    evaluator: GroupCollector
    pages: int | None
    """Pages of the engine's KV cache. None without a plan."""
    retry: GroupCollector | None = None
    """For unsolved tasks; None without rollout.retry_unsolved."""
    gateway: "Gateway | None" = None
    """Through which an agent calls the engine. Open while episodes run."""

    def open(self) -> AbstractAsyncContextManager[object]:
        """Open what episodes need besides the engine."""
        return nullcontext() if self.gateway is None else self.gateway


def build_renderer(rollout: RolloutConfig, loaded: LoadedModel) -> Renderer:
    return Renderer(loaded.tokenizer, loaded.stop_ids, rollout.prefix, loaded.images)


def build_policy_stack(
    config: Config,
    environments: EnvironmentMix,
    loaded: LoadedModel,
    pages: int | None = None,
    *,
    run: Path | None = None,
) -> PolicyStack:
    """Build the stack. An engine that shares the learner's weights has a copy of them in asynchronous training.

    `run`: folder in which the gateway of an agent keeps its calls.
    """
    renderer = build_renderer(config.rollout, loaded)
    copies = config.rollout.max_staleness > 0 and config.engine.shares_weights
    model = copy_model(loaded.model).requires_grad_(False) if copies else loaded.model
    engine = build_engine(config.engine, config.rollout, model, renderer, pages=pages)
    training = training_sampling(config.rollout)
    limits = episode_limits(config.rollout, training)
    gateway = None
    if environments.has_agent:
        on_socket = isinstance(config.agent, Harness)
        gateway = build_gateway(config.rollout, engine, renderer, limits, run, on_socket=on_socket)
    frozen = build_frozen_policies(
        environments,
        loaded.tokenizer,
        model_loader(config.model),
        lambda model: build_engine(config.engine, config.rollout, model, renderer, pages=pages),
    )

    collector = _collector_builder(config, environments, engine, renderer, gateway, frozen)
    return PolicyStack(
        renderer=renderer,
        engine=engine,
        collector=collector(training, config.seed),
        greedy=collector(replace(training, temperature=0.0), config.seed),
        retry=collector(replace(training, temperature=RETRY_TEMPERATURE), config.seed)
        if config.rollout.retry_unsolved
        else None,
        # all runs are evaluated with the same random numbers
        evaluator=collector(evaluation_sampling(config.rollout, config.eval), 0),
        pages=pages,
        gateway=gateway,
    )


def _collector_builder(
    config: Config,
    environments: EnvironmentMix,
    engine: Engine,
    renderer: Renderer,
    gateway: "Gateway | None",
    frozen: Mapping[str, Policy],
) -> Callable[[Sampling, int], GroupCollector]:
    """Return what builds a collector from its sampling and seed: of an agent, of several roles, or of environments."""

    def build(sampling: Sampling, run_seed: int) -> GroupCollector:
        limits = episode_limits(config.rollout, sampling)
        if gateway is not None:
            return build_agent_collector(config.agent, config.reward, config.rollout, gateway, limits, run_seed)
        context = build_context(config.context, config.rollout, renderer)
        if environments.roles:
            return build_roles_collector(
                environments,
                engine,
                frozen,
                context=context,
                limits=limits,
                rollout=config.rollout,
                run_seed=run_seed,
            )
        return Collector(
            policy=engine,
            make_env=environments.make,
            context=context,
            limits=limits,
            in_flight=config.rollout.in_flight,
            attempts=config.rollout.attempts,
            run_seed=run_seed,
        )

    return build


def episode_limits(rollout: RolloutConfig, sampling: Sampling) -> Limits:
    return Limits(sampling=sampling, max_tokens=rollout.max_tokens, timeout_s=rollout.timeout_s)


def training_sampling(rollout: RolloutConfig) -> Sampling:
    return Sampling(temperature=rollout.temperature, max_tokens=rollout.max_new_tokens, stop=rollout.stop)


def evaluation_sampling(rollout: RolloutConfig, evaluation: EvalConfig) -> Sampling:
    return Sampling(
        max_tokens=rollout.max_new_tokens,
        temperature=evaluation.temperature,
        top_p=evaluation.top_p,
        top_k=evaluation.top_k,
        stop=rollout.stop,
    )


def reward_names(reward: RewardConfig) -> list[str]:
    """Return the names of reward.functions, in order."""
    return [function.reward_name for function in reward.functions]


def reward_weights(reward: RewardConfig) -> dict[str, float]:
    """Return the weights by name: of the environment's reward, then of functions and judges."""
    names = [ENV, *reward_names(reward)]
    weights = dict(zip(names, reward.weights or [1.0] * len(names), strict=True))
    return weights | judge_weights(reward.judges)


def build_rewards(
    reward: RewardConfig, rollout: RolloutConfig, judges: JudgeRegistry, decode: Callable[[Sequence[int]], str]
) -> RewardSet:
    """Build all rewards of a run. `decode` gives judges the text of token ids."""
    functions = {function.reward_name: build_reward(function) for function in reward.functions}
    return RewardSet(
        format_penalty=reward.format_penalty,
        functions=functions,
        judges=build_group_judges(reward.judges, judges, decode, taken=tuple(functions)),
        weights=reward_weights(reward),
        timeout_s=rollout.timeout_s,
    )
