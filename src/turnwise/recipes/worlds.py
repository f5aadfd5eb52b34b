"""The environments of a run: the one that it names, and those that are mixed in."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.task import Task
from turnwise.envs.kind import EnvKind
from turnwise.envs.registry import load
from turnwise.envs.runner import TextEnvRunner
from turnwise.rollout.curriculum import Curriculum
from turnwise.rollout.sides import SidedTasks
from turnwise.rollout.tasks import TaskSource, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Worlds:
    kinds: Mapping[str, EnvKind]
    """By the name that their tasks bear; the run's own environment first."""
    worlds: tuple[World, ...]

    @property
    def name(self) -> str:
        return "+".join(self.kinds)

    @property
    def with_params(self) -> list[tuple[EnvKind, dict[str, Any]]]:
        return [(self.kinds[world.env], dict(world.params)) for world in self.worlds]

    def make(self, task: Task, member: int = 0, attempt: int = 0) -> TextEnvRunner:
        return self.kinds[task.env].make(task, member, attempt)


def worlds_of(config: Config, kind: EnvKind | None = None) -> Worlds:
    """`kind`: of env.kind, where a program has it at hand."""
    first = kind or load(config.env.kind)
    kinds = {first.name: first}
    worlds = [_world(first, config.env.params, weight=1.0)]
    for name, mixed in config.env.mixed().items():
        if name in kinds:
            raise UserError(
                f"env.mix.{name}: that is env.kind's name already: give it another, with kind = {mixed.kind}"
            )
        kinds[name] = replace(load(mixed.kind), name=name)
        worlds.append(_world(kinds[name], mixed.params, mixed.weight))
    return Worlds(kinds=kinds, worlds=tuple(worlds))


def _world(kind: EnvKind, given: Mapping[str, Any], weight: float) -> World:
    params = kind.check_params(given)
    kind.check_world(params)
    return World(env=kind.name, params=params, weight=weight, sizes=kind.sizes(params))


def task_source(config: Config, worlds: Worlds) -> TaskSource:
    settings = config.curriculum
    curriculum = Curriculum(pool=settings.pool, floor=settings.floor, memory=settings.memory) if settings.pool else None
    if config.selfplay.opponent != "none":
        return SidedTasks(
            worlds=worlds.worlds,
            run_seed=config.seed,
            both=config.selfplay.opponent == "self",
            random_moves=config.selfplay.random_moves,
        )
    return TaskSource(worlds=worlds.worlds, run_seed=config.seed, curriculum=curriculum)
