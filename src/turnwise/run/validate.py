"""Validate a run before it starts: its settings, the names in them, and the servers of its tools and judges.

Nothing here changes a configuration or an environment; each check returns or raises UserError.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from turnwise.algos.settings import TOKEN_RULES
from turnwise.cluster.placement import check_capacity, plan_placement
from turnwise.config.schema import Config
from turnwise.core.errors import UserError, not_a_file
from turnwise.envs.adapters.package_envs import PackageEnv
from turnwise.envs.agent.settings import AGENT_ENV, FunctionSettings, StartedAgent
from turnwise.envs.games.env import GameEnv
from turnwise.envs.reasoning import ReasoningFormat, formats_with
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import TextEnv
from turnwise.envs.tool_env import ToolEnv
from turnwise.models.loading.catalogue import model_names
from turnwise.models.loading.hub import is_hub_available, is_hub_name
from turnwise.models.loading.load import resolve_device
from turnwise.models.settings import ModelConfig
from turnwise.render.parse import read_sections
from turnwise.rewards.factory import build_group_judges
from turnwise.rewards.functions import build_reward
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.run.agents import build_agent, load_reward
from turnwise.run.build import check_engine_reads_images, check_model_reads_images, reward_names
from turnwise.run.build_learner import token_rule
from turnwise.run.check_settings import check_settings_fit
from turnwise.run.contexts import check_context
from turnwise.run.datasets import check_data
from turnwise.run.environment_mix import EnvironmentMix
from turnwise.run.resources import check_threads, cores
from turnwise.run.setting_names import check_model_name, check_names
from turnwise.run.sources import use_own_adapter
from turnwise.text.suggestions import suggest
from turnwise.tools.tool import NeedsServer
from turnwise.user_code.references import is_reference

QUIET_S = 3.0
"""Seconds without an answer of a server before a message: its first start may be a download."""

log = logging.getLogger(__name__)


def check_run(
    config: Config, environments: EnvironmentMix, override_keys: Iterable[str] = (), *, resume: bool = False
) -> None:
    """Check everything that a training run needs. `override_keys` are the settings that the user gave explicitly."""
    if not environments.specs:
        raise UserError('env.kind "none" is for SFT on a file. Name an environment, or run `turnwise sft --data FILE`.')
    if not environments.entries:
        raise UserError('env.kind "agent" needs an agent. Set agent.command or agent.function, and agent.tasks.')
    run = Path(config.record.folder) / config.record.name if resume and config.record.name is not None else None
    if run is not None:
        config = use_own_adapter(config, run)
    judges = JudgeRegistry()
    check_settings(config, override_keys, judges)
    check_engine_reads_images(config, environments)
    check_model_reads_images(config, environments)
    for spec in environments.specs.values():
        check_environment(config, spec)
    check_prefix(config, environments)
    check_sections(config, environments)
    check_cluster(config, environments)
    check_data(config, run)
    check_servers(environments.with_params, judges=judges.clients)


def check_cluster(config: Config, environments: EnvironmentMix) -> None:
    """Check what a run on Ray needs, and if it starts its own cluster, that this machine has room for it."""
    settings = config.cluster
    if not settings.is_used:
        return
    if find_spec("ray") is None:
        raise UserError(
            "cluster.engines, cluster.learners and cluster.env_workers need Ray. Run `pip install 'turnwise[ray]'`."
        )
    for spec, params in environments.with_params:
        if (settings.engines or settings.env_workers) and spec.judges(params):
            raise UserError(
                f"{spec.params_setting} has a judge, whose budget counts requests of one process. "
                "Set cluster.engines and cluster.env_workers to 0, or use reward.judges."
            )
    has_gpus = resolve_device(config.model.device).type == "cuda"
    if has_gpus and bool(settings.engines) != bool(settings.learners):
        raise UserError(
            "On GPUs, set both cluster.engines and cluster.learners: what runs in this process would share a GPU with "
            "actors that Ray places there."
        )
    if settings.address is None and "RAY_ADDRESS" not in os.environ:
        here = {"CPU": float(cores()), "GPU": float(torch.cuda.device_count())}
        placement = plan_placement(settings, gpus_per_engine=config.engine.gpus if has_gpus else 0)
        check_capacity(settings, placement, {"this machine": here})


def check_settings(config: Config, override_keys: Iterable[str] = (), judges: JudgeRegistry | None = None) -> None:
    """Check names, combinations of settings, and that each override has an effect. Judges are added to `judges`."""
    check_names(config)
    check_model_name(config)
    check_context(config)
    check_model(config.model)
    check_threads(config.system)
    check_packages(config)
    config.engine.check()
    check_settings_fit(config, override_keys)
    for setting in TOKEN_RULES:
        token_rule(getattr(config.algo, setting), f"algo.{setting}")
    if isinstance(config.agent, StartedAgent):
        build_agent(config.agent)
        load_reward(config.agent)
    for function in config.reward.functions:
        build_reward(function)
    build_group_judges(config.reward.judges, judges or JudgeRegistry(), decode=str, taken=reward_names(config))


def check_environment(config: Config, spec: EnvSpec) -> None:
    """Check that the environment has what self-play and the advantage need."""
    if config.selfplay.is_used:
        _check_game(config, spec)
    text_env = spec.text_env
    if config.algo.advantage.needs_states and (text_env is None or text_env.state_key is TextEnv.state_key):
        define = "Define it" if text_env is not None else "Make it a TextEnv with one"
        raise UserError(
            f"algo.advantage {config.algo.advantage.kind} compares turns that acted in the same state, and "
            f"{spec.name} has no state_key(). {define}, or choose grpo or turn_grpo."
        )


def check_prefix(config: Config, environments: EnvironmentMix) -> None:
    """Raise UserError if rollout.prefix begins the answer where replies should describe states before it."""
    prefix = config.rollout.prefix
    if "<answer>" not in prefix or read_sections(prefix):
        return
    for spec, params in environments.with_params:
        form = spec.reasoning_format(params)
        if form != "free":
            raise UserError(
                f'rollout.prefix "{prefix}" begins the answer, so no reply has the sections of '
                f'{spec.params_setting}.reasoning {form}. Set rollout.prefix to "<think>" or "".'
            )


def check_sections(config: Config, environments: EnvironmentMix) -> None:
    """Raise UserError if a token mask selects a section that no prompt asks for.

    Prompts of the user's own, rollout.prefix and stored episodes may have any section. If no reply has it, a run
    prints a note.
    """
    forms = [_reasoning_of_fixed_prompt(spec, params) for spec, params in environments.with_params]
    if None in forms or config.data.sources:
        return
    for setting, value in ((f"algo.{name}", getattr(config.algo, name)) for name in TOKEN_RULES):
        for section in value.split("+"):
            fitting = formats_with(section)
            if fitting and not set(fitting).intersection(forms) and f"<{section}>" not in config.rollout.prefix:
                raise UserError(
                    f'{setting} "{value}": no prompt of the run asks for the section <{section}>. Set '
                    f"env.params.reasoning to {' or '.join(fitting)}, or change {setting}."
                )


def _reasoning_of_fixed_prompt(spec: EnvSpec, params: Mapping[str, Any]) -> ReasoningFormat | None:
    """Return env.params.reasoning where nothing else adds sections to the prompt; None elsewhere.

    Tools, environments of other libraries and the user's own have prompts that turnwise does not know.
    """
    is_foreign = spec.text_env is None or is_reference(spec.id) or spec.subclass_of(PackageEnv) is not None
    has_other_prompt = is_foreign or "reasoning" not in spec.params_model.model_fields
    return None if has_other_prompt else spec.reasoning_format(params)


def _check_game(config: Config, spec: EnvSpec) -> None:
    setting = f"selfplay.opponent {config.selfplay.opponent.kind}"
    if spec.subclass_of(GameEnv) is None:
        raise UserError(
            f"{setting} needs a two-player game, and {spec.name} is not one. Choose tic_tac_toe or connect_four, or "
            "remove it."
        )
    params = spec.check_params(config.env.params)
    if params["begins"] != "random":
        raise UserError(f"env.params.begins fixes the player, and {setting} trains both. Remove one of the two.")
    if params["max_actions_per_turn"] != 1:
        raise UserError(
            f"env.params.max_actions_per_turn: with {setting} the opponent moves after each action. Set it to 1."
        )


def check_model(model: ModelConfig) -> None:
    """Check what needs no reading or download of the model."""
    resolve_device(model.device)
    if model.chat_template is not None and not (file := Path(model.chat_template).expanduser()).is_file():
        raise UserError(f"model.chat_template: {not_a_file(file)}. Give a Jinja file.")
    known = model.name in model_names() or Path(model.name).expanduser().exists()
    if not known and not is_hub_name(model.name):
        raise UserError(
            f'Unknown model "{model.name}":{suggest(model.name, model_names())} '
            "(or give a hub name (owner/name), or a folder or .gguf file that exists)."
        )


EXTRAS: tuple[tuple[Callable[[Config], bool], str, str, str], ...] = (
    (lambda config: config.record.pictures_every > 0, "record.pictures_every", "PIL", "pictures"),
    (lambda config: config.env.kind == AGENT_ENV, "An agent", "starlette", "gateway"),
    (lambda config: isinstance(config.agent, FunctionSettings), "agent.function", "openai", "gateway"),
    (lambda config: config.lora.rank > 0, "lora.rank", "peft", "lora"),
    (lambda config: config.model.name.endswith(".gguf"), "A GGUF file", "gguf", "gguf"),
)
"""(whether a run needs the package, what needs it, its module, turnwise's extra)."""


def check_packages(config: Config) -> None:
    """Check that the optional packages that the settings need are installed."""
    for is_needed, what, module, extra in EXTRAS:
        if is_needed(config) and find_spec(module) is None:
            raise UserError(f"{what} needs a package that is not installed. Run `pip install 'turnwise[{extra}]'`.")


def check_hub(model: ModelConfig) -> None:
    """Check that a hub name exists, or is in the local cache if the hub cannot be reached. Reports what was checked."""
    if model.name in model_names() or Path(model.name).expanduser().exists():
        return
    if is_hub_available(model.name):
        log.info("checked: %s is on the Hugging Face hub", model.name)


def check_servers(
    environments: Iterable[tuple[EnvSpec, Mapping[str, Any]]], judges: Sequence[NeedsServer] = ()
) -> None:
    """Ask each server of tools and judges once, all at the same time."""
    servers = [*judges]
    for spec, params in environments:
        servers += spec.judges(params)
        if (tool_env := spec.subclass_of(ToolEnv)) is not None:
            servers += tool_env.servers(spec.params_model.model_validate(dict(params)))
    if servers:
        asyncio.run(_check_all(servers))


async def _check_all(servers: Sequence[NeedsServer]) -> None:
    """Wait until every server has answered or one has failed."""
    checks = [asyncio.ensure_future(server.check_server()) for server in servers]
    _, pending = await asyncio.wait(checks, timeout=QUIET_S, return_when=asyncio.FIRST_EXCEPTION)
    if pending and not any(check.done() and check.exception() for check in checks):
        log.info("waiting for the servers of tools and judges")
    await asyncio.gather(*checks)
