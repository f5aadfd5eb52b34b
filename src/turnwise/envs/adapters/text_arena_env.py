"""TextArena: its games for one player, and for two against a scripted opponent."""

import random
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from turnwise.envs.adapters.package_env import PackageEnv
from turnwise.envs.text_env import StrictParams


class TextArenaEnv(PackageEnv):
    """A game of TextArena, for one player or against a scripted opponent."""

    max_turns = 20
    needs = MappingProxyType({"textarena": "'turnwise[textarena]'"})
    world = "turnwise.envs.adapters.text_arena_world:TextArenaWorld"

    class Params(StrictParams):
        id: str = "TicTacToe-v0"
        """The game's name in TextArena, without -raw or -train."""
        options: dict[str, Any] = Field({})
        """What it is made with, such as num_disks."""
        player: Literal["first", "second", "either"] = "either"
        """Of two players, which one the agent is: either draws it from the task's seed."""
        opponent: Literal["random", "greedy"] = "random"
        """Plays legal moves at random; greedy takes one that wins at once where there is one."""
        moves: tuple[str, ...] = ()
        """Moves that the opponent chooses from; none given: those in square brackets in what it is shown."""
        success_at: float = 1.0
        """The game's own reward that counts as success: 1 is a win, or a puzzle solved."""

    params: Params

    def rules(self) -> str:
        return "Play the game. The action is your move, in square brackets where the game says so."

    def random_action(self, rng: random.Random) -> str | None:
        """A legal move that what was shown suggests; None where nothing does."""
        move: str | None = self.remote.call("guess", seed=rng.getrandbits(63))
        return move
