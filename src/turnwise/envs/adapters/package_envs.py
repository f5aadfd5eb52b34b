"""What all adapters share: a TextEnv whose world lives in the process of its package."""

import random
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from turnwise.core.errors import EnvironmentFailure
from turnwise.envs.adapters.process import RemoteEnv
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv

MAX_ACTION = 2_000
"""Characters of an action; a longer one is invalid."""
MAX_TEXT = 20_000
"""Characters of an observation; a longer one is a failure: no context would hold it."""
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class PackageEnv(TextEnv):
    """An environment of another package."""

    worker_env: ClassVar[str]
    """module:Class of its `WorkerEnv`."""
    timeout_s: ClassVar[float] = 30.0
    """For one call into the package; one that takes longer is a failure of the environment."""

    def __init__(self, params: Mapping[str, Any] | None = None, rng: random.Random | None = None) -> None:
        super().__init__(params, rng)
        self.remote = RemoteEnv(self.worker_env, self.settings(), self.timeout_s)
        self.about: dict[str, Any] = self.remote.about
        self.action_names = tuple(self.about.get("actions", ()))
        self.text = ""
        self.moves: tuple[str, ...] = ()

    def settings(self) -> dict[str, Any]:
        """What the world is made of, as plain JSON values."""
        return self.params.model_dump(mode="json", include=set(type(self).Params.model_fields))

    def reset(self, rng: random.Random) -> str:
        scene = self.remote.call("begin", start=rng.getrandbits(63), luck=self.rng.getrandbits(63))
        return self._see(scene)

    def step(self, action: str) -> Outcome:
        if len(action) > MAX_ACTION:
            raise ValueError("too long")
        scene = self.remote.call("step", action=action)
        reward, over, success = scene.get("reward", 0.0), scene.get("over", False), scene.get("success", False)
        if not isinstance(reward, int | float) or not isinstance(over, bool) or not isinstance(success, bool):
            raise EnvironmentFailure(f"step gave reward {reward!r}, over {over!r}, success {success!r}")
        return Outcome(text=self._see(scene), reward=float(reward), over=over, success=success)

    def random_action(self, rng: random.Random) -> str | None:
        options = self.moves or self.action_names
        return rng.choice(options) if options else None

    def solve(self) -> list[str] | None:
        return self.remote.call("solve")

    def _see(self, scene: Any) -> str:
        text, moves = scene["text"], scene.get("moves", ())
        if not isinstance(text, str) or not all(isinstance(move, str) for move in moves):
            raise EnvironmentFailure("what the package shows is no text")
        text = CONTROLS.sub("", text).strip()
        if len(text) > MAX_TEXT:
            raise EnvironmentFailure(f"an observation of {len(text)} characters; {MAX_TEXT} are allowed")
        self.text, self.moves = text, tuple(moves)
        return text


class GymnasiumEnv(PackageEnv):
    """An environment of Gymnasium with discrete actions, in words."""

    max_turns = 20
    needs = MappingProxyType({"gymnasium": "'turnwise[gymnasium]'"})
    worker_env = "turnwise.envs.adapters.gymnasium_worker:GymnasiumWorkerEnv"

    class Params(StrictParams):
        id: str = "Taxi-v4"
        """Its name in Gymnasium; MODULE:NAME imports a module that registers it."""
        options: dict[str, Any] = Field({})
        """What it is made with, such as is_slippery; FrozenLake also takes map_name "random", size and p."""
        actions: tuple[str, ...] = ()
        """Names of the actions in their order; none given: those known of it, else numbers."""
        success_at: float | None = None
        """The last reward from which an episode that ended counts as success; none: as known of it, else above 0."""

        invalid_reward: float | None = None
        """Of an answer that is no action; none: what a step costs where that is known, else 0."""

    params: Params

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"longest": self.action_budget}

    def rules(self) -> str:
        return str(self.about["rules"])

    @property
    def invalid_reward(self) -> float:
        return float(self.about["invalid_reward"])

    def state_key(self) -> str:
        return self.text


class ReasoningGymEnv(PackageEnv):
    """A generated task with one answer, of reasoning-gym.

    The reward is the score of the best answer so far; full marks are success.
    """

    max_turns = 1
    needs = MappingProxyType({"reasoning_gym": "'turnwise[reasoning-gym]'"})
    worker_env = "turnwise.envs.adapters.reasoning_gym_worker:ReasoningGymWorkerEnv"

    class Params(StrictParams):
        task: str = "leg_counting"
        """The dataset's name in reasoning-gym."""
        options: dict[str, Any] = Field({})
        """Of the dataset, such as min_animals."""
        success_at: float = 1.0
        """The score that counts as success."""

    params: Params

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"tries": self.max_turns}

    def rules(self) -> str:
        return "Solve the task. The action is the answer alone, as the task asks for it."


class TextArenaEnv(PackageEnv):
    """A game of TextArena, for one player or against a scripted opponent."""

    max_turns = 20
    needs = MappingProxyType({"textarena": "'turnwise[textarena]'"})
    worker_env = "turnwise.envs.adapters.text_arena_worker:TextArenaWorkerEnv"

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


class TextWorldEnv(PackageEnv):
    """Fulfil the quest of a generated text adventure, of TextWorld."""

    max_turns = 20
    needs = MappingProxyType({"textworld": "'turnwise[textworld]'"})
    worker_env = "turnwise.envs.adapters.text_world_worker:TextWorldWorkerEnv"
    timeout_s = 120.0  # its compiler takes seconds, on a busy machine many

    class Params(StrictParams):
        rooms: Annotated[int, Field(ge=1, le=30)] = 3
        """1 to 30."""
        objects: Annotated[int, Field(ge=1, le=50)] = 5
        """1 to 50, those of the quest among them."""
        quest_length: Annotated[int, Field(ge=1, le=20)] = 3
        """Commands that the quest takes; now and then there is a shorter way."""
        objective: Literal["steps", "goal"] = "steps"
        """The objective tells every step, or only the last."""
        narrator: Literal["facts", "inform7"] = "facts"
        """facts: what can be seen, in few words; inform7: TextWorld's own prose, compiled in seconds a game."""
        commands: bool = True
        """The observation lists the commands that can be given."""
        progress_reward: float = 0.0
        """For a command that brings the end of the quest nearer, less for one that takes it away."""

    params: Params

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"longest": self.action_budget}

    def rules(self) -> str:
        return "Fulfil the quest. The action is a command, such as: go east, open box, take key from box."

    def state_key(self) -> str:
        """What can be seen, without the quest, which only the first observation tells."""
        return self.text.partition("\n")[2] if self.text.startswith("Quest: ") else self.text
