"""Games of TextArena whose players are all agents of the run."""

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import Field

from turnwise.core.errors import EnvironmentFailure
from turnwise.envs.adapters.package_envs import CONTROL_CHARACTERS, MAX_ACTION_CHARS, MAX_OBSERVATION_CHARS
from turnwise.envs.adapters.process import RemoteEnv
from turnwise.envs.roles.env import RolesEnv
from turnwise.envs.roles.outcome import RolesOutcome, finish, tell
from turnwise.envs.text_env import StrictParams
from turnwise.rewards.functions import to_float


class TextArenaPlayers(RolesEnv):
    """A game of TextArena for two or more players, all of them agents."""

    max_turns = 20
    needs = MappingProxyType({"textarena": "'turnwise[textarena]'"})

    class Params(StrictParams):
        id: str = "ThreePlayerTicTacToe-v0"
        """Name of the game in TextArena, without -raw or -train."""
        count: int = Field(3, ge=2, le=15)
        """Number of players."""
        options: dict[str, Any] = Field({})
        """Arguments of textarena.make."""
        moves: tuple[str, ...] = ()
        """Moves that scripted players choose from. Default: those in square brackets in their observations."""
        success_at: float = 1.0
        """Least reward of a player that counts as success."""

    params: Params

    def __init__(self, params: Mapping[str, Any] | None = None, rng: random.Random | None = None) -> None:
        super().__init__(params, rng)
        settings = self.params.model_dump(mode="json", include={"id", "options", "count", "moves"})
        self.remote = RemoteEnv("turnwise.envs.adapters.text_arena_worker:TextArenaPlayersEnv", settings, 30.0)

    @classmethod
    def role_names(cls, params: Any) -> tuple[str, ...]:
        return tuple(f"player_{number}" for number in range(params.count))

    def rules(self) -> str:
        return "Play the game. The action is your move, in square brackets where the game says so."

    def begin(self, rng: random.Random) -> RolesOutcome:
        seeds = {"start_seed": rng.getrandbits(63), "later_seed": self.rng.getrandbits(63)}
        return self._outcome(self.remote.call("begin", **seeds))

    def act(self, role: str, action: str) -> RolesOutcome:
        if len(action) > MAX_ACTION_CHARS:
            raise ValueError("too long")
        return self._outcome(self.remote.call("step", action=action))

    def random_move(self, role: str, rng: random.Random) -> str | None:
        move: str | None = self.remote.call("guess", seed=rng.getrandbits(63))
        return move

    def _outcome(self, result: Mapping[str, Any]) -> RolesOutcome:
        texts = {self.roles[int(player)]: self._clean(text) for player, text in result["texts"].items()}
        if not result.get("over"):
            return tell(texts, next=self.roles[result["player"]])
        rewards = dict(zip(self.roles, map(to_float, result["rewards"]), strict=True))
        winners = [role for role, reward in rewards.items() if reward >= self.params.success_at]
        return finish(texts, rewards=rewards, winners=winners)

    @staticmethod
    def _clean(text: Any) -> str:
        if not isinstance(text, str):
            raise EnvironmentFailure("the package's observation is not text")
        text = CONTROL_CHARACTERS.sub("", text).strip()
        if len(text) > MAX_OBSERVATION_CHARS:
            raise EnvironmentFailure(f"an observation has {len(text)} characters, more than {MAX_OBSERVATION_CHARS}")
        return text
