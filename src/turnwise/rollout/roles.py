"""Matches of an environment with several roles."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from turnwise.core.protocols import Env, Policy
from turnwise.core.task import EpisodeKey, Task
from turnwise.rollout.matches import Seat, SeatedCollector

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
            Seat(task=first.task.as_role(role), env=env, policy=self.frozen.get(role, self.policy))
            for role, env in seated
        ]
