"""The environments of a run: env.kind and those of env.mix."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnwise.config.load import Overrides
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.task import Split, Task
from turnwise.envs.agent.harness import HARBOR_ENV, Harness
from turnwise.envs.agent.settings import AGENT_ENV, AgentSettings, StartedAgent
from turnwise.envs.agent.tasks import AGENT_SPEC
from turnwise.envs.param_setting import params_in
from turnwise.envs.registry import load_spec
from turnwise.envs.settings import NO_ENV, EnvConfig
from turnwise.envs.spec import EnvRunner, EnvSpec
from turnwise.envs.tool_env import ToolEnv
from turnwise.evaluation.statistics import wilson_interval
from turnwise.rewards.services import RewardServices
from turnwise.rollout.opponents import CurrentPolicy
from turnwise.rollout.tasks import Curriculum, EnvMixEntry, RoleTasks, SelfPlayTasks, TaskSource
from turnwise.settings.values import parse_free, parse_list
from turnwise.tools.tool import NeedsServer

MIN_HELD_OUT = 30
"""Held-out tasks below which the confidence interval is wider than most improvements."""
PURPOSES: dict[Split, str] = {"train": "to train on", "validation": "to validate", "test": "held out"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentMix:
    specs: Mapping[str, EnvSpec]
    """By the `env` of their tasks; env.kind first."""
    entries: tuple[EnvMixEntry, ...]
    harness: bool = False
    """Whether a command-line agent plays the tasks of the environments."""

    @property
    def name(self) -> str:
        return "+".join(self.specs) or "data"

    @property
    def has_agent(self) -> bool:
        """True if an agent runs the episodes instead of environments."""
        return self.harness or AGENT_ENV in self.specs

    @property
    def with_params(self) -> list[tuple[EnvSpec, dict[str, Any]]]:
        return [(self.specs[entry.env], dict(entry.params)) for entry in self.entries]

    @property
    def visual_spec(self) -> EnvSpec | None:
        """First environment that shows images; None if all show text only."""
        return next((spec for spec, params in self.with_params if spec.shows_images(params)), None)

    @property
    def roles(self) -> tuple[str, ...]:
        """The trained roles; none if each episode has one agent."""
        return next((roles for spec, params in self.with_params if (roles := spec.roles(params))), ())

    @property
    def is_fully_observable(self) -> bool:
        """Whether each observation of all environments shows all that matters."""
        return bool(self.specs) and all(spec.fully_observable for spec in self.specs.values())

    def with_services(self, services: RewardServices) -> "EnvironmentMix":
        """Return the same environments with rewards that use `services`, built once now so that errors come early."""
        for spec, params in self.with_params:
            spec.judges(params, services)
        return replace(self, specs={name: replace(spec, services=services) for name, spec in self.specs.items()})

    def make(self, task: Task, member: int = 0, attempt: int = 0) -> EnvRunner:
        return self.specs[task.env].make(task, member, attempt)


def build_environment_mix(env: EnvConfig, agent: AgentSettings, spec: EnvSpec | None = None) -> EnvironmentMix:
    """Build the mix; empty for env.kind "none". `spec` replaces env.kind, for a class that is not in a file."""
    if env.kind == NO_ENV:
        return EnvironmentMix(specs={}, entries=())
    if env.kind == AGENT_ENV and not isinstance(agent, StartedAgent):  # `tw.Trainer` is given its tasks
        return EnvironmentMix(specs={AGENT_ENV: AGENT_SPEC}, entries=())
    first, params = (spec, env.params) if spec else load_environment(env, agent)
    specs = {first.name: first}
    entries = [_build_entry(first, params, weight=1.0)]
    for name, mixed in env.mixed().items():
        if name in specs:
            raise UserError(
                f"env.mix.{name}: this is already the name of env.kind. Choose another, with kind = {mixed.kind}."
            )
        specs[name] = replace(load_spec(mixed.kind), name=name, params_setting=f"env.mix.{name}.params")
        with params_in(specs[name].params_setting):
            entries.append(_build_entry(specs[name], mixed.params, mixed.weight))
    harness = isinstance(agent, Harness)
    if harness and (others := [name for name, mixed in specs.items() if mixed.id != HARBOR_ENV]):
        raise UserError(
            f"{others[0]} has no Harbor tasks, which agent {agent.kind} plays. Name a folder, harbor:./tasks."
        )
    return EnvironmentMix(specs=specs, entries=tuple(entries), harness=harness)


def parse_list_params(settings: Mapping[str, Any], overrides: Overrides) -> Overrides:
    """Parse `--env.params.NAME a,b` as a list where the parameter is one, as for other settings."""
    prefix, env = "env.params.", settings.get("env", {})
    chosen = [value for key, value in overrides if key == "env.kind"] or [env.get("kind")]
    if not any(key.startswith(prefix) for key, _ in overrides) or chosen[-1] in (None, NO_ENV, AGENT_ENV):
        return overrides
    properties = load_spec(chosen[-1]).params_model.model_json_schema()["properties"]

    def parse(key: str, value: Any) -> Any:
        is_list = properties.get(key.removeprefix(prefix), {}).get("type") == "array"
        is_text = isinstance(value, str) and isinstance(parse_free(value), str)
        return parse_list(value) if key.startswith(prefix) and is_list and is_text else value

    return [(key, parse(key, value)) for key, value in overrides]


def load_environment(env: EnvConfig, agent: AgentSettings) -> tuple[EnvSpec, Mapping[str, Any]]:
    """Load the spec of env.kind, and its parameters as given. Those of an agent's tasks are in agent.tasks."""
    if env.kind != AGENT_ENV:
        return load_spec(env.kind), env.params
    if not isinstance(agent, StartedAgent) or agent.tasks is None:
        raise UserError("agent.tasks is missing. Name a JSONL file with a task per line.")
    return AGENT_SPEC, {"tasks": agent.tasks}


def _build_entry(spec: EnvSpec, settings: Mapping[str, Any], weight: float) -> EnvMixEntry:
    params = spec.check_params(settings)
    spec.check_resources(params)
    return EnvMixEntry(env=spec.name, params=params, weight=weight, sizes=spec.split_sizes(params))


def find_servers(environments: Iterable[tuple[EnvSpec, Mapping[str, Any]]]) -> list[NeedsServer]:
    """Return the servers of tools and judges that episodes need."""
    servers: list[NeedsServer] = []
    for spec, params in environments:
        servers += spec.judges(params)
        if (tool_env := spec.subclass_of(ToolEnv)) is not None:
            servers += tool_env.servers(spec.params_model.model_validate(dict(params)))
    return servers


def describe_rows(environments: EnvironmentMix, config: Config) -> list[str]:
    """Return lines with the number of rows per split, warnings about few rows, and notes of the environments."""
    entries = environments.entries
    counted, alone = [entry for entry in entries if entry.sizes], len(entries) == 1
    lines = [line for entry in counted for line in (_count_rows(entry), *_warn_few(entry, config, alone=alone))]
    for spec, params in environments.with_params:
        if (tool_env := spec.subclass_of(ToolEnv)) is not None:
            lines += tool_env.notes(spec.params_model.model_validate(params))
    return lines


def rows_name(env: str, params: Mapping[str, Any]) -> str:
    """Return the name of the file that the environment reads its tasks from, or the environment's name."""
    return Path(params["tasks"]).name if isinstance(params.get("tasks"), str) else env


def _count_rows(entry: EnvMixEntry) -> str:
    sizes = [
        f"{size:,} {'rows ' * (not number)}{PURPOSES[split]}"
        for number, (split, size) in enumerate(entry.sizes.items())
    ]
    return f"{rows_name(entry.env, entry.params)}: {', '.join(sizes)}"


def _warn_few(entry: EnvMixEntry, config: Config, *, alone: bool) -> Iterator[str]:
    train, held_out = entry.sizes.get("train"), entry.sizes.get(config.eval.split)
    if alone and train is not None and train < config.rollout.groups:
        yield f"note: a step draws rollout.groups {config.rollout.groups} tasks from {train} rows, so some repeat"
    if train is not None and 0 < config.curriculum.pool < train:
        yield f"note: curriculum.pool {config.curriculum.pool} trains on {config.curriculum.pool} of {train:,} rows"
    if alone and held_out is not None and held_out < MIN_HELD_OUT:
        low, high = wilson_interval(0.5, held_out)
        yield (
            f"note: {held_out} held-out rows measure success only to +-{50 * (high - low):.0f} points; {MIN_HELD_OUT} "
            "or more are better"
        )


def build_task_source(config: Config, environments: EnvironmentMix) -> TaskSource:
    curriculum = Curriculum(pool=config.curriculum.pool) if config.curriculum.pool else None
    if config.selfplay.is_used:
        return SelfPlayTasks(
            mix=environments.entries,
            run_seed=config.seed,
            both=isinstance(config.selfplay.opponent, CurrentPolicy),
            random_moves=config.selfplay.random_moves,
        )
    if roles := environments.roles:
        return RoleTasks(mix=environments.entries, run_seed=config.seed, curriculum=curriculum, roles=roles)
    return TaskSource(mix=environments.entries, run_seed=config.seed, curriculum=curriculum)
