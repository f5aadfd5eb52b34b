"""Build what plays: the engine of the policy, its collectors of episodes, their evaluation, and the rewards."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.config.recording import EvalConfig, RecordConfig
from turnwise.config.schema import Config
from turnwise.core.protocols import Engine, EngineControl, Policy, Sampling
from turnwise.engine.options import EngineOptions
from turnwise.engine.settings import EngineSettings
from turnwise.envs.agent.harness import Harness
from turnwise.models.layers import copy_model
from turnwise.models.loading.load import LoadedModel
from turnwise.record.run_folder import RunFolder
from turnwise.render.renderer import Renderer
from turnwise.report.progress import Progress
from turnwise.rewards.factory import build_group_judges, judge_weights
from turnwise.rewards.functions import build_reward
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.scoring import ENV, RewardSet
from turnwise.rewards.settings import RewardConfig
from turnwise.rollout.collect import Collector, GroupCollector
from turnwise.rollout.episode import Limits
from turnwise.rollout.settings import RETRY_TEMPERATURE, RolloutConfig
from turnwise.run.agents import build_agent_collector, build_gateway
from turnwise.run.build_context import build_context
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.load_policy import model_loader
from turnwise.run.roles import build_frozen_policies, build_roles_collector
from turnwise.training.validation import Evaluator

if TYPE_CHECKING:  # its packages are optional
    from turnwise.gateway.server import Gateway


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


def build_evaluator(stack: PolicyStack, record: RecordConfig, folder: RunFolder, progress: Progress) -> Evaluator:
    return Evaluator(
        collector=stack.evaluator,
        folder=folder,
        progress=progress,
        decode=stack.renderer.decode,
        name_token=stack.renderer.name_token,
        records_trajectories=record.trajectories > 0,
    )
