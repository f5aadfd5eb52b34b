"""RolesOutcome: the result of an action in an environment with several roles."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesOutcome:
    """Result of one action. Created by `tell` and `finish`."""

    observations: Mapping[str, str] = field(default_factory=dict)
    """New observations by role. At its next turn a role sees all of them since its last one."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards by role. They count for the role's last action."""
    next: str | None = None
    """The role that acts next. None: the one after the role that acted, in the order of `RolesEnv.roles`."""
    over: bool = False
    """The episode of all roles ends."""
    winners: Collection[str] = ()
    """Roles that succeeded, at the end."""


def tell(
    observations: Mapping[str, str] | None = None,
    *,
    rewards: Mapping[str, float] | None = None,
    next: str | None = None,
) -> RolesOutcome:
    """Continue the episode, with new observations by role. `next`: the next role, if not the following one."""
    return RolesOutcome(observations=observations or {}, rewards=rewards or {}, next=next)


def finish(
    observations: Mapping[str, str] | None = None,
    *,
    rewards: Mapping[str, float] | None = None,
    winners: Collection[str] = (),
) -> RolesOutcome:
    """End the episode of all roles, with last observations by role. `winners`: the roles that succeeded."""
    return RolesOutcome(observations=observations or {}, rewards=rewards or {}, over=True, winners=winners)
