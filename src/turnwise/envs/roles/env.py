"""RolesEnv: an environment for two or more roles, each with its own observations and rewards.

    class Signal(tw.RolesEnv):
        \"\"\"A speaker sees a colour and sends a letter. A listener sees the letter and names the colour.\"\"\"
        roles = ("speaker", "listener")
        max_turns = 1                                            # of each role

        def begin(self, rng):
            self.colour = rng.choice(("red", "green", "blue"))
            return tw.tell({"speaker": f"The colour is {self.colour}. Send a, b or c."})

        def act(self, role, action):
            if role == "speaker":
                return tw.tell({"listener": f"The letter is {action}. Which colour?"})
            right = action == self.colour
            return tw.finish(rewards=dict.fromkeys(self.roles, float(right)), winners=self.roles if right else ())

In training each role is an episode of its own, with its own context. `env.params.players` says who plays which role.
"""

import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from turnwise.concurrency.loop_clock import pause_current_clock
from turnwise.core.errors import EnvironmentFailure, UserError
from turnwise.core.messages import Content, join_lines
from turnwise.core.protocols import Observation
from turnwise.envs.param_setting import param_setting
from turnwise.envs.roles.match import Match
from turnwise.envs.roles.outcome import RolesOutcome, finish
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.text_env import Outcome, TextEnv

TRAINED, SCRIPT = "trained", "script"
"""Players of a role that are not runs: the policy in training, and `RolesEnv.script`."""


class RolesEnv(TextEnv):
    """Rules of an environment with several roles. One instance serves the episodes of all of them."""

    roles: tuple[str, ...] = ()
    """Names of the roles, in the order in which they act."""
    view_params: ClassVar[tuple[str, ...]] = (*TextEnv.view_params, "role", "players")
    acting: str = ""
    """The role that acts."""

    def __init__(self, params: Mapping[str, Any] | None = None, rng: random.Random | None = None) -> None:
        super().__init__(params, rng)
        self.roles = self.role_names(self.params)

    @classmethod
    def role_names(cls, params: Any) -> tuple[str, ...]:
        """Return the roles, for environments whose number of roles is a parameter; by default `roles`."""
        return cls.roles

    @abstractmethod
    def begin(self, rng: random.Random) -> RolesOutcome:
        """Create the start state from this random stream; `tell` the roles their first observations."""

    @abstractmethod
    def act(self, role: str, action: str) -> RolesOutcome:
        """Run a role's action. Raise ValueError for an illegal one; the role then acts again."""

    def leave(self, role: str) -> RolesOutcome:
        """Say what follows when a role has no turns, tokens or time left. By default the episode ends for all."""
        return finish(dict.fromkeys(self.roles, f"The {role} has left."))

    def random_move(self, role: str, rng: random.Random) -> str | None:
        """Return a legal action of a role, for scripts, warm-up and fuzzing; None if there is none."""
        return None

    def script(self, role: str, rng: random.Random) -> str:
        """Return the action of a scripted role; by default a random legal one."""
        action = self.random_move(role, rng)
        if action is None:
            raise EnvironmentFailure(
                f"{type(self).__name__} has no script for the {role}. Define random_move or script."
            )
        return action

    @classmethod
    def has_scripts(cls) -> bool:
        """Return whether a script can play the roles."""
        return cls.random_move is not RolesEnv.random_move or cls.script is not RolesEnv.script

    @classmethod
    def common_params(cls) -> dict[str, Any]:
        """Return the limits, `role` and `players`."""
        players = f"Who plays each role: {TRAINED} (default), {SCRIPT}, or a run or model, which is not trained."
        return super().common_params() | {
            "role": (str, Field("", description="The role whose episode this is; empty: all roles in turn.")),
            "players": (dict[str, str], Field(default_factory=dict, description=players)),
        }

    @classmethod
    def check(cls, params: Any) -> None:
        """Raise UserError for roles that do not exist, or if none is trained."""
        super().check(params)
        roles = cls.role_names(params)
        if len(set(roles)) < 2 or len(set(roles)) < len(roles):
            raise UserError(f"{cls.__name__}.roles is {roles!r}. Name two roles or more, each once.")
        for name, chosen in (("role", filter(None, [params.role])), ("players", params.players)):
            if unknown := [role for role in chosen if role not in roles]:
                raise UserError(
                    f"{param_setting(name)} names the role {unknown[0]!r}. {cls.__name__} has {', '.join(roles)}."
                )
        if not params.role and not cls.episode_roles(params):
            raise UserError(f"{param_setting('players')} leaves no role to train. Set one to {TRAINED}.")

    @classmethod
    def episode_roles(cls, params: Any) -> tuple[str, ...]:
        """Return the trained roles; the chosen one alone with `env.params.role`."""
        if params.role:
            return (params.role,)
        return tuple(role for role in cls.role_names(params) if params.players.get(role, TRAINED) == TRAINED)

    def random_action(self, rng: random.Random) -> str | None:
        """Return a random move of the role that acts."""
        return self.random_move(self.acting, rng)

    def reset(self, rng: random.Random) -> Content:
        """Not used: see `begin`."""
        raise UserError(f"{type(self).__name__} has several roles: call begin in place of reset.")

    def step(self, action: str) -> Outcome:
        """Not used: see `act`."""
        raise UserError(f"{type(self).__name__} has several roles: call act in place of step.")


class RoleRunner(TextEnvRunner):
    """Episode of one role. The runners of a match share the environment.

    A turn ends when the role acts again, so its reward includes what the others' actions have brought it. Without
    `env.params.role` one agent plays all roles, each in its turn; with it, scripts play the others.
    """

    env: RolesEnv

    def __init__(self, env: RolesEnv, start_rng: random.Random, seed: int = 0, match: Match | None = None) -> None:
        super().__init__(env, start_rng, seed)
        self._seats: tuple[str, ...] = (env.params.role,) if env.params.role else env.roles
        self._match = match or Match(env, scripted=set(env.roles) - set(self._seats))
        self._introduced = ""
        """The role of the last turn."""

    def in_match(self, match: Match, role: str) -> "RoleRunner":
        """Return the episode of a role in a match of this environment."""
        runner = RoleRunner(self.env, self._start_rng, match=match)
        runner._seats, runner.params_setting = (role,), self.params_setting
        return runner

    async def start(self) -> Observation:
        return replace(await super().start(), over=self._match.over)

    async def close(self) -> None:
        for role in self._seats:
            self._match.leave(role)

    async def _reset(self) -> Content:
        self._match.begin(self._start_rng)
        return await self._observe()

    async def _judge(self, action: str) -> Outcome:
        self._match.act(self._match.acting, action)
        text = await self._observe()
        match = self._match
        return Outcome(
            text=text,
            reward=sum(match.collect(role) for role in self._seats),
            over=match.over,
            success=match.over and any(role in match.winners for role in self._seats),
        )

    async def _observe(self) -> str:
        """Wait until one of the own roles acts or the episode is over; return its observation."""
        if len(self._seats) == 1:
            with pause_current_clock():  # the others' time is measured in their own episodes
                await self._match.wait_for(self._seats[0])
        role = self._match.acting if self._match.acting in self._seats else self._seats[0]
        introduction = f"You are the {role.replace('_', ' ')}." if role != self._introduced else ""
        self._introduced = role
        return str(join_lines([introduction, self._match.read(role)]))

    @property
    def turn_limit(self) -> int:
        """Turns of all roles that this agent plays."""
        return self.env.max_turns * len(self._seats)

    def _limit_reached(self) -> str:
        return "No turns left." if self._turns >= self.turn_limit else ""


RolesEnv.runner = RoleRunner


def open_match(runner: RoleRunner, players: Mapping[str, str]) -> list[tuple[str, RoleRunner]]:
    """Begin a match in the runner's environment; return the roles that agents play, with their episodes."""
    env = runner.env
    seated = [role for role in env.roles if players.get(role) != SCRIPT]
    match = Match(env, scripted=set(env.roles) - set(seated))
    return [(role, runner.in_match(match, role)) for role in seated]
