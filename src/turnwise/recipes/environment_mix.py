"""The environments of a run: the one that it names, and those that are mixed in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.task import Split, Task
from turnwise.envs.registry import load_spec
from turnwise.envs.rubric_env import RubricEnv
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.spec import EnvSpec
from turnwise.envs.text_env import params_model
from turnwise.envs.tool_env import ToolEnv
from turnwise.evaluation.statistics import wilson_of_rate
from turnwise.rewards.services import RewardServices
from turnwise.rollout.tasks import Curriculum, EnvMixEntry, SelfPlayTasks, TaskSource

FEW = 30
"""Held-out tasks below which an interval is wider than most that training gains."""
PURPOSES: dict[Split, str] = {"train": "to train on", "validation": "to validate", "test": "held out"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentMix:
    kinds: Mapping[str, EnvSpec]
    """By the name that their tasks bear; the run's own environment first."""
    worlds: tuple[EnvMixEntry, ...]

    @property
    def name(self) -> str:
        return "+".join(self.kinds)

    @property
    def with_params(self) -> list[tuple[EnvSpec, dict[str, Any]]]:
        return [(self.kinds[world.env], dict(world.params)) for world in self.worlds]

    def with_services(self, services: RewardServices) -> "EnvironmentMix":
        """Return the same environments with rubrics that use `services`, built now so that errors come first."""
        for kind, params in self.with_params:
            if issubclass(kind.cls, RubricEnv):
                kind.cls.build_rubric(params_model(kind.cls).model_validate(params), services)
        return replace(self, kinds={name: replace(kind, services=services) for name, kind in self.kinds.items()})

    def make(self, task: Task, member: int = 0, attempt: int = 0) -> TextEnvRunner:
        return self.kinds[task.env].make(task, member, attempt)


def build_environment_mix(config: Config, kind: EnvSpec | None = None) -> EnvironmentMix:
    """`kind`: of env.kind, where a program has it at hand."""
    first = kind or load_spec(config.env.kind)
    kinds = {first.name: first}
    worlds = [_world(first, config.env.params, weight=1.0)]
    for name, mixed in config.env.mixed().items():
        if name in kinds:
            raise UserError(
                f"env.mix.{name}: that is env.kind's name already: give it another, with kind = {mixed.kind}"
            )
        kinds[name] = replace(load_spec(mixed.kind), name=name)
        worlds.append(_world(kinds[name], mixed.params, mixed.weight))
    return EnvironmentMix(kinds=kinds, worlds=tuple(worlds))


def _world(kind: EnvSpec, given: Mapping[str, Any], weight: float) -> EnvMixEntry:
    params = kind.check_params(given)
    kind.check_resources(params)
    return EnvMixEntry(env=kind.name, params=params, weight=weight, sizes=kind.split_sizes(params))


def describe_rows(worlds: EnvironmentMix, config: Config) -> list[str]:
    """Of worlds whose tasks are counted, how many there are for what; and what is to be known of them."""
    counted, alone = [world for world in worlds.worlds if world.sizes], len(worlds.worlds) == 1
    lines = [line for world in counted for line in (_rows(world), *_few(world, config, alone=alone))]
    for kind, params in worlds.with_params:
        if issubclass(kind.cls, ToolEnv):
            lines += kind.cls.notes(params_model(kind.cls).model_validate(params))
    return lines


def name_of_rows(world_name: str, params: Mapping[str, Any]) -> str:
    """Their file, where the environment reads one."""
    return Path(params["tasks"]).name if isinstance(params.get("tasks"), str) else world_name


def _rows(world: EnvMixEntry) -> str:
    sizes = [
        f"{size:,} {'rows ' * (not number)}{PURPOSES[split]}"
        for number, (split, size) in enumerate(world.sizes.items())
    ]
    return f"{name_of_rows(world.env, world.params)}: {', '.join(sizes)}"


def _few(world: EnvMixEntry, config: Config, *, alone: bool) -> Iterator[str]:
    train, held_out = world.sizes.get("train"), world.sizes.get(config.eval.split)
    if alone and train is not None and train < config.rollout.groups:
        yield f"note: a step draws rollout.groups {config.rollout.groups} tasks and there are {train}: some come again"
    if train is not None and 0 < config.curriculum.pool < train:
        yield f"note: curriculum.pool {config.curriculum.pool} trains on {config.curriculum.pool} of {train:,} rows"
    if alone and held_out is not None and held_out < FEW:
        low, high = wilson_of_rate(0.5, held_out)
        yield f"note: {held_out} rows tell success to +-{50 * (high - low):.0f} points only: {FEW} or more tell better"


def task_source(config: Config, worlds: EnvironmentMix) -> TaskSource:
    settings = config.curriculum
    curriculum = Curriculum(pool=settings.pool, floor=settings.floor, memory=settings.memory) if settings.pool else None
    if config.selfplay.opponent != "none":
        return SelfPlayTasks(
            mix=worlds.worlds,
            run_seed=config.seed,
            both=config.selfplay.opponent == "self",
            random_moves=config.selfplay.random_moves,
        )
    return TaskSource(mix=worlds.worlds, run_seed=config.seed, curriculum=curriculum)
