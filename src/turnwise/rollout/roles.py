"""Matches of an environment with several roles."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from turnwise.core.protocols import Env, Policy
from turnwise.core.task import EpisodeKey, Split, Task
from turnwise.envs.roles.env import all_roles, as_role
from turnwise.rollout.matches import Seat, SeatedCollector
from turnwise.rollout.tasks import SuccessCounts, TaskSource

MakeRoles = Callable[[Task, int, int], Iterable[tuple[str, Env]]]
"""(task, member, attempt) -> the roles of a new match that agents play, with their environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesCollector(SeatedCollector):
    """Runs one episode for each role that an agent plays."""

    policy: Policy
    frozen: Mapping[str, Policy]
    """Policies of the roles that are not trained, by role."""
    trained: tuple[str, ...]
    make_roles: MakeRoles

    @property
    def tasks_per_match(self) -> int:
        return len(self.trained)

    def seats(self, keys: Sequence[EpisodeKey]) -> Sequence[Seat]:
        first = keys[0]
        seated = self.make_roles(first.task, first.member, first.attempt)
        return [
            Seat(task=as_role(first.task, role), env=env, policy=self.frozen.get(role, self.policy))
            for role, env in seated
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTasks(TaskSource):
    """Tasks of all trained roles: each match gives one to each of them, one after the other."""

    roles: tuple[str, ...]

    def draw(self, step: int, count: int, start: int = 0, success_counts: SuccessCounts | None = None) -> list[Task]:
        many = len(self.roles)
        return all_roles(TaskSource.draw(self, step, count // many, start // many, success_counts), self.roles)

    def first_tasks(self, split: Split, count: int) -> list[Task]:
        many = len(self.roles)
        return all_roles(TaskSource.first_tasks(self, split, -(-count // many)), self.roles)
