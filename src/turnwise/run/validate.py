"""Validate a run before it starts: its settings, the names in them, and the servers of its tools and judges.

Nothing here changes a configuration or an environment; each check returns or raises UserError.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from turnwise.algos.settings import TOKEN_RULES, AlgoConfig
from turnwise.cluster.placement import check_capacity, plan_placement
from turnwise.config.recording import RecordConfig
from turnwise.config.resources import ClusterConfig
from turnwise.config.schema import Config
from turnwise.core.errors import UserError, not_a_file
from turnwise.data.settings import DataConfig
from turnwise.engine.settings import EngineSettings
from turnwise.envs.adapters.package_envs import PackageEnv
from turnwise.envs.agent.harness import Harness
from turnwise.envs.agent.settings import AgentSettings, StartedAgent
from turnwise.envs.games.env import GameEnv
from turnwise.envs.reasoning import ReasoningFormat, formats_with
from turnwise.envs.settings import EnvConfig
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import TextEnv
from turnwise.gateway.harbor_agent import check_tasks_are_hidden, check_tasks_need_no_container, find_program
from turnwise.models.loading.catalogue import model_names
from turnwise.models.loading.hub import is_hub_available, is_hub_name
from turnwise.models.loading.load import resolve_device
from turnwise.models.settings import ModelConfig
from turnwise.record.trackers import check_trackers
from turnwise.render.parse import read_sections
from turnwise.rewards.factory import build_group_judges
from turnwise.rewards.functions import build_reward
from turnwise.rewards.judge.registry import JudgeRegistry
from turnwise.rewards.scoring import ENV, FORMAT
from turnwise.rewards.settings import RewardConfig
from turnwise.rollout.settings import RolloutConfig, SelfPlayConfig
from turnwise.run.agents import build_agent, load_reward
from turnwise.run.build_learner import token_rule
from turnwise.run.check_images import check_engine_reads_images, check_model_reads_images
from turnwise.run.check_settings import check_settings_fit, sections_of
from turnwise.run.environment_mix import EnvironmentMix, find_servers
from turnwise.run.find_model import use_own_adapter
from turnwise.run.resources import check_threads, cores
from turnwise.run.roles import check_roles
from turnwise.run.setting_names import check_device
from turnwise.run.stored_sources import check_data
from turnwise.text.suggestions import suggest
from turnwise.tools.tool import NeedsServer
from turnwise.user_code.references import is_reference

QUIET_S = 3.0
"""Seconds without an answer of a server before a message: its first start may be a download."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRun:
    """Run against which a section is checked."""

    config: Config
    environments: EnvironmentMix
    resumed: Path | None = None
    """Folder of a run that is resumed."""


def check_run(
    config: Config, environments: EnvironmentMix, override_keys: Iterable[str] = (), *, resume: bool = False
) -> None:
    """Check everything that a training run needs. `override_keys` are the settings that the user gave explicitly."""
    if not environments.specs:
        raise UserError('env.kind "none" is for SFT on a file. Name an environment, or run `turnwise sft --data FILE`.')
    if not environments.entries:
        raise UserError('env.kind "agent" needs an agent. Set agent.command or agent.function, and agent.tasks.')
    resumed = config.record.path if resume else None
    if resumed is not None:
        config = use_own_adapter(config, resumed)
    check_settings(config, override_keys)
    run = CheckedRun(config=config, environments=environments, resumed=resumed)
    for name, check in RUN_CHECKS:
        check(getattr(config, name), run)


def check_settings(config: Config, override_keys: Iterable[str] = ()) -> None:
    """Check that the sections fit together, that each override has an effect, and each section by itself."""
    check_settings_fit(config, override_keys)
    for _, section in sections_of(config):
        for package in section.packages():
            if find_spec(package.module) is None:
                raise UserError(package.explain_missing())
    for name, check in SECTION_CHECKS:
        check(getattr(config, name))


def check_trackers_of(record: RecordConfig) -> None:
    check_trackers(record.trackers)


def check_engine(engine: EngineSettings) -> None:
    engine.check()


def check_token_rules(algo: AlgoConfig) -> None:
    for setting in TOKEN_RULES:
        token_rule(getattr(algo, setting), f"algo.{setting}")


def check_agent(agent: AgentSettings) -> None:
    if isinstance(agent, StartedAgent):
        build_agent(agent, RolloutConfig())
        load_reward(agent)


def check_harness(agent: AgentSettings, run: CheckedRun) -> None:
    """Check that a command-line agent is installed, and not beside the tests of its tasks."""
    if isinstance(agent, Harness):
        program = find_program(agent)
        for _, params in run.environments.with_params:
            check_tasks_are_hidden(program, params["folder"])
            check_tasks_need_no_container(params)


def check_reward(reward: RewardConfig) -> None:
    names = [function.reward_name for function in reward.functions]
    if len(set(names)) < len(names) or {ENV, FORMAT} & set(names):
        raise UserError('reward.functions need different names, and "env" and "format" are reserved. Rename one.')
    for function in reward.functions:
        build_reward(function)
    judge_clients(reward)


def judge_clients(reward: RewardConfig) -> list[NeedsServer]:
    judges = JudgeRegistry()
    names = tuple(function.reward_name for function in reward.functions)
    build_group_judges(reward.judges, judges, decode=str, taken=names)
    return [*judges.clients]


def check_cluster(settings: ClusterConfig, run: CheckedRun) -> None:
    """Check what a run on Ray needs, and if it starts its own cluster, that this machine has room for it."""
    if not settings.is_used:
        return
    if find_spec("ray") is None:
        raise UserError(
            "cluster.engines, cluster.learners and cluster.env_workers need Ray. Run `pip install 'turnwise[ray]'`."
        )
    for spec, params in run.environments.with_params:
        if (settings.engines or settings.env_workers) and spec.judges(params):
            raise UserError(
                f"{spec.params_setting} has a judge, whose budget counts requests of one process. "
                "Set cluster.engines and cluster.env_workers to 0, or use reward.judges."
            )
    has_gpus = resolve_device(run.config.model.device).type == "cuda"
    if has_gpus and bool(settings.engines) != bool(settings.learners):
        raise UserError(
            "On GPUs, set both cluster.engines and cluster.learners: what runs in this process would share a GPU with "
            "actors that Ray places there."
        )
    if settings.address is None and "RAY_ADDRESS" not in os.environ:
        here = {"CPU": float(cores()), "GPU": float(torch.cuda.device_count())}
        placement = plan_placement(settings, gpus_per_engine=run.config.engine.gpus if has_gpus else 0)
        check_capacity(settings, placement, {"this machine": here})


def check_states(algo: AlgoConfig, run: CheckedRun) -> None:
    """Check that the environments have the states that the advantage compares."""
    for spec in run.environments.specs.values() if algo.advantage.needs_states else ():
        text_env = spec.text_env
        if text_env is None or text_env.state_key is TextEnv.state_key:
            define = "Define it" if text_env is not None else "Make it a TextEnv with one"
            raise UserError(
                f"algo.advantage {algo.advantage.kind} compares turns that acted in the same state, and {spec.name} "
                f"has no state_key(). {define}, or choose grpo or turn_grpo."
            )


def check_prefix(rollout: RolloutConfig, run: CheckedRun) -> None:
    """Raise UserError if rollout.prefix begins the answer where replies should describe states before it."""
    prefix = rollout.prefix
    if "<answer>" not in prefix or read_sections(prefix):
        return
    for spec, params in run.environments.with_params:
        form = spec.reasoning_format(params)
        if form != "free":
            raise UserError(
                f'rollout.prefix "{prefix}" begins the answer, so no reply has the sections of '
                f'{spec.params_setting}.reasoning {form}. Set rollout.prefix to "<think>" or "".'
            )


def check_sections(algo: AlgoConfig, run: CheckedRun) -> None:
    """Raise UserError if a token mask selects a section that no prompt asks for.

    Prompts of the user's own, rollout.prefix and stored episodes may have any section. If no reply has it, a run
    prints a note.
    """
    forms = [_reasoning_of_fixed_prompt(spec, params) for spec, params in run.environments.with_params]
    if None in forms or run.config.data.sources:
        return
    for setting, value in ((f"algo.{name}", getattr(algo, name)) for name in TOKEN_RULES):
        for section in value.split("+"):
            fitting = formats_with(section)
            if fitting and not set(fitting).intersection(forms) and f"<{section}>" not in run.config.rollout.prefix:
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


def check_games(selfplay: SelfPlayConfig, run: CheckedRun) -> None:
    """Check that the environments are what self-play needs."""
    for spec, params in run.environments.with_params if selfplay.is_used else ():
        setting = f"selfplay.opponent {selfplay.opponent.kind}"
        if spec.subclass_of(GameEnv) is None:
            raise UserError(
                f"{setting} needs a two-player game, and {spec.name} is not one. Choose tic_tac_toe or connect_four, "
                "or remove it."
            )
        if params["begins"] != "random":
            raise UserError(f"env.params.begins fixes the player, and {setting} trains both. Remove one of the two.")
        if params["max_actions_per_turn"] != 1:
            raise UserError(
                f"env.params.max_actions_per_turn: with {setting} the opponent moves after each action. Set it to 1."
            )


def check_roles_of_run(env: EnvConfig, run: CheckedRun) -> None:
    check_roles(run.config, run.environments)


def check_images_of_engine(engine: EngineSettings, run: CheckedRun) -> None:
    check_engine_reads_images(engine, run.environments)


def check_images_of_model(model: ModelConfig, run: CheckedRun) -> None:
    check_model_reads_images(model, run.environments)


def check_stored_episodes(data: DataConfig, run: CheckedRun) -> None:
    check_data(run.config, run.resumed)


def check_servers_of_run(reward: RewardConfig, run: CheckedRun) -> None:
    check_servers(run.environments.with_params, judges=judge_clients(reward))


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
    if servers := [*judges, *find_servers(environments)]:
        asyncio.run(_check_all(servers))


async def _check_all(servers: Sequence[NeedsServer]) -> None:
    """Wait until every server has answered or one has failed."""
    checks = [asyncio.ensure_future(server.check_server()) for server in servers]
    _, pending = await asyncio.wait(checks, timeout=QUIET_S, return_when=asyncio.FIRST_EXCEPTION)
    if pending and not any(check.done() and check.exception() for check in checks):
        log.info("waiting for the servers of tools and judges")
    await asyncio.gather(*checks)


SECTION_CHECKS: tuple[tuple[str, Callable[[Any], None]], ...] = (
    ("model", check_device),
    ("record", check_trackers_of),
    ("model", check_model),
    ("system", check_threads),
    ("engine", check_engine),
    ("algo", check_token_rules),
    ("agent", check_agent),
    ("reward", check_reward),
)
"""Checks of a section that take torch, files or packages, and so cannot be in its class."""
RUN_CHECKS: tuple[tuple[str, Callable[[Any, CheckedRun], None]], ...] = (
    ("engine", check_images_of_engine),
    ("model", check_images_of_model),
    ("selfplay", check_games),
    ("env", check_roles_of_run),
    ("algo", check_states),
    ("rollout", check_prefix),
    ("algo", check_sections),
    ("agent", check_harness),
    ("cluster", check_cluster),
    ("data", check_stored_episodes),
    ("reward", check_servers_of_run),
)
"""Checks of a section against the environments of a run. Servers come last: they take time."""
