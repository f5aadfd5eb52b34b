"""Match: the episode that the roles of an environment share."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from turnwise.core.errors import EnvironmentFailure
from turnwise.envs.roles.outcome import RolesOutcome
from turnwise.envs.runner import MAX_REWARD
from turnwise.rewards.functions import to_float
from turnwise.text.truncation import describe_value

MAX_SCRIPTED = 1000
"""Scripted actions in a row: more are taken for a loop."""


class World(Protocol):
    """The part of a `RolesEnv` that a match uses."""

    roles: tuple[str, ...]
    acting: str
    rng: random.Random

    def begin(self, rng: random.Random) -> RolesOutcome: ...
    def act(self, role: str, action: str) -> RolesOutcome: ...
    def leave(self, role: str) -> RolesOutcome: ...
    def script(self, role: str, rng: random.Random) -> str: ...


class Match:
    """The acting role, and each role's observations and rewards since it last acted.

    A role whose agent leaves early, because its turns, tokens or time ran out, is played by the script from then on,
    unless the environment ends the episode.
    """

    def __init__(self, world: World, scripted: Collection[str] = ()) -> None:
        self._world = world
        self._scripted = set(scripted)
        self._unseen: dict[str, list[str]] = defaultdict(list)
        self._rewards: dict[str, float] = defaultdict(float)
        self._begun = False
        self._changed = asyncio.Event()
        world.acting = world.roles[0]
        self.over = False
        self.winners: Collection[str] = ()

    @property
    def acting(self) -> str:
        return self._world.acting

    def begin(self, rng: random.Random) -> None:
        """Begin the episode, once for all roles. `rng` is equal for all of them."""
        if not self._begun:
            self._begun = True
            self._follow(self._world.begin(rng), "begin", actor=self._world.roles[-1])

    def act(self, role: str, action: str) -> None:
        """Run a role's action. Raises ValueError if it is illegal."""
        self._follow(self._world.act(role, action), "act", actor=role)

    def leave(self, role: str) -> None:
        """Continue without a role's agent."""
        if self.over or role in self._scripted:
            return
        self._scripted.add(role)
        self._follow(self._world.leave(role), "leave", actor=role)

    async def wait_for(self, role: str) -> None:
        """Wait until the role acts or the episode is over."""
        while not self.over and self.acting != role:
            await self._changed.wait()

    def read(self, role: str) -> str:
        """Return the observations of a role since the last call."""
        return "\n".join(self._unseen.pop(role, []))

    def collect(self, role: str) -> float:
        """Return the sum of the rewards of a role since the last call."""
        return self._rewards.pop(role, 0.0)

    def _follow(self, outcome: RolesOutcome, where: str, actor: str) -> None:
        """Apply an outcome, and those of the scripted roles that act after it."""
        self._apply(outcome, where, actor)
        for _ in range(MAX_SCRIPTED):
            if self.over or self.acting not in self._scripted:
                self._changed.set()
                self._changed = asyncio.Event()
                return
            if self._scripted >= set(self._world.roles):  # the last agent has left
                self.over = True
                continue
            role = self.acting
            self._apply(self._scripted_outcome(role), "act", role)
        raise EnvironmentFailure(
            f"{type(self._world).__name__}: scripted roles acted {MAX_SCRIPTED} times in a row. Let the others act too."
        )

    def _scripted_outcome(self, role: str) -> RolesOutcome:
        action = self._world.script(role, self._world.rng)
        try:
            return self._world.act(role, action)
        except ValueError as error:
            raise EnvironmentFailure(
                f"{type(self._world).__name__}.script returned {describe_value(action)} for the {role}, which act() "
                f"refuses: {error}"
            ) from error

    def _apply(self, outcome: RolesOutcome, where: str, actor: str) -> None:
        label, roles = f"{type(self._world).__name__}.{where}", self._world.roles
        check_outcome(outcome, label, roles)
        for role, text in outcome.observations.items():
            self._unseen[role].append(text)
        for role, reward in outcome.rewards.items():
            self._rewards[role] += to_float(reward)
        self.over, self.winners = outcome.over, outcome.winners
        self._world.acting = outcome.next or roles[(roles.index(actor) + 1) % len(roles)]


def check_outcome(outcome: Any, label: str, roles: tuple[str, ...]) -> None:
    """Raise EnvironmentFailure if an environment returned something else than an outcome for its roles."""
    if not isinstance(outcome, RolesOutcome):
        raise EnvironmentFailure(f"{label} returned {describe_value(outcome)}: return tell(...) or finish(...)")
    for name in ("observations", "rewards"):
        if not isinstance(table := getattr(outcome, name), Mapping):
            raise EnvironmentFailure(f"{label} returned {describe_value(table)} as {name}: give a value for each role")
    named = [*outcome.observations, *outcome.rewards, *outcome.winners, *([outcome.next] if outcome.next else [])]
    if unknown := [role for role in named if role not in roles]:
        raise EnvironmentFailure(
            f"{label} names {describe_value(unknown[0])} as a role, and the roles are {', '.join(roles)}"
        )
    if wrong := [text for text in outcome.observations.values() if not isinstance(text, str)]:
        raise EnvironmentFailure(f"{label} returned {describe_value(wrong[0])} as an observation: return a text")
    for role, reward in outcome.rewards.items():
        if not abs(to_float(reward)) <= MAX_REWARD:  # also catches NaN
            raise EnvironmentFailure(f"{label} returned {describe_value(reward)} as the reward of the {role}")
