"""Scene: what follows from an action in an environment with several roles."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What follows from an action. Created by `tell` and `finish`."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """What each role learns. At its next turn it reads all that it was told since its last one."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards by role. They count for the role's last action."""
    next: str | None = None
    """The role that acts next. None: the one after the role that acted, in the order of `RolesEnv.roles`."""
    over: bool = False
    """The episode of all roles ends."""
    winners: Collection[str] = ()
    """Roles that succeeded, at the end."""


def tell(
    texts: Mapping[str, str] | None = None, *, rewards: Mapping[str, float] | None = None, next: str | None = None
) -> Scene:
    """Continue the episode. `texts`: by role, what it learns. `next`: the role that acts next, if not the following."""
    return Scene(texts=texts or {}, rewards=rewards or {}, next=next)


def finish(
    texts: Mapping[str, str] | None = None,
    *,
    rewards: Mapping[str, float] | None = None,
    winners: Collection[str] = (),
) -> Scene:
    """End the episode of all roles. `winners`: the roles that succeeded."""
    return Scene(texts=texts or {}, rewards=rewards or {}, over=True, winners=winners)
