"""Environments of other packages: TextEnvs whose state is in their package's worker process."""

import base64
import random
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from turnwise.core.errors import EnvironmentFailure
from turnwise.core.images import image_hash
from turnwise.core.messages import Content, join_lines
from turnwise.envs.adapters.process import RemoteEnv
from turnwise.envs.picture_env import CellPixels, Observation
from turnwise.envs.text_env import Outcome, StrictParams, TextEnv
from turnwise.pictures.image import Image, import_pillow

MAX_ACTION_CHARS = 2_000
"""A longer action is invalid."""
MAX_OBSERVATION_CHARS = 20_000
"""A longer observation is an environment failure: no context would hold it."""
TOKENS_PER_SIDE = 8
"""Tokens of a small model along the longer side of an image without cells."""
CONTROL_CHARACTERS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class PackageEnv(TextEnv):
    """An environment of another package."""

    worker_env: ClassVar[str]
    """MODULE:Class of its `WorkerEnv`."""
    worker_limits: ClassVar[tuple[str, ...]] = ()
    """Attributes with limits of the episode that the worker needs to know."""
    timeout_s: ClassVar[float] = 30.0
    """Time limit of one call into the package, in seconds. A longer call is an environment failure."""

    def __init__(self, params: Mapping[str, Any] | None = None, rng: random.Random | None = None) -> None:
        super().__init__(params, rng)
        self.remote = RemoteEnv(self.worker_env, self.settings(), self.timeout_s)
        self.about: dict[str, Any] = self.remote.about
        self.action_names = tuple(self.about.get("actions", ()))
        self.text = ""
        self.moves: tuple[str, ...] = ()
        self.image: Image | None = None

    def settings(self) -> dict[str, Any]:
        """Return the arguments of the worker's environment, as plain JSON values."""
        params: dict[str, Any] = self.params.model_dump(mode="json", include=set(type(self).Params.model_fields))
        return params | {name: getattr(self, name) for name in self.worker_limits}

    def reset(self, rng: random.Random) -> Content:
        first = self.remote.call("begin", start_seed=rng.getrandbits(63), later_seed=self.rng.getrandbits(63))
        return self._observe(first)

    def step(self, action: str) -> Outcome:
        if len(action) > MAX_ACTION_CHARS:
            raise ValueError("too long")
        result = self.remote.call("step", action=action)
        reward, over, success = result.get("reward", 0.0), result.get("over", False), result.get("success", False)
        if not isinstance(reward, int | float) or not isinstance(over, bool) or not isinstance(success, bool):
            raise EnvironmentFailure(f"step returned reward {reward!r}, over {over!r}, success {success!r}")
        return Outcome(text=self._observe(result), reward=float(reward), over=over, success=success)

    def random_action(self, rng: random.Random) -> str | None:
        options = self.moves or self.action_names
        return rng.choice(options) if options else None

    def solve(self) -> list[str] | None:
        return self.remote.call("solve")

    def _observe(self, result: Any) -> Content:
        text, moves, image = result["text"], result.get("moves", ()), result.get("image")
        if not all(isinstance(part, str) for part in (text, image or "", *moves)):
            raise EnvironmentFailure("the package's observation is not text")
        text = CONTROL_CHARACTERS.sub("", text).strip()
        if len(text) > MAX_OBSERVATION_CHARS:
            raise EnvironmentFailure(f"an observation has {len(text)} characters, more than {MAX_OBSERVATION_CHARS}")
        self.text, self.moves = text, tuple(moves)
        self.image = None if image is None else Image(base64.b64decode(image))
        return text if self.image is None else join_lines([self.image, text])


class GymnasiumEnv(PackageEnv):
    """An environment of Gymnasium with discrete actions, in words or images."""

    max_turns = 20
    fully_observable = True  # Gymnasium's agents act on the current observation
    needs = MappingProxyType({"gymnasium": "'turnwise[gymnasium]'"})
    worker_env = "turnwise.envs.adapters.gymnasium_worker:GymnasiumWorkerEnv"
    worker_limits = ("action_budget",)
    view_params = (*PackageEnv.view_params, "observation", "image_side", "cell_pixels")

    class Params(StrictParams):
        id: str = "Taxi-v4"
        """Name in Gymnasium's registry; MODULE:NAME imports a module that registers it."""
        options: dict[str, Any] = Field({})
        """Arguments of gymnasium.make, such as is_slippery; FrozenLake also takes map_name "random", size and p."""
        actions: tuple[str, ...] = ()
        """Names of the actions, in order. Default: the known names, else numbers."""
        success_at: float | None = None
        """Least last reward of a successful episode. Default: the known value, else any reward above 0."""

        invalid_reward: float | None = None
        """Reward of an invalid action. Default: the known cost of a step, else 0."""
        observation: Observation = "text"
        """Form of the observation: text, image (the environment's rgb_array), or both."""
        image_side: Annotated[int, Field(ge=16, le=512)] = 224
        """Pixels of an image's longer side, at most; larger ones are scaled down."""
        cell_pixels: CellPixels | None = None
        """Pixels on a side of each cell, in place of image_side: MiniGrid, FrozenLake, CliffWalking, Taxi."""

    params: Params

    def rules(self) -> str:
        return str(self.about["rules"])

    @property
    def invalid_reward(self) -> float:
        return float(self.about["invalid_reward"])

    @classmethod
    def check(cls, params: Any) -> None:
        if cls.shows_images(params):
            import_pillow()

    @classmethod
    def shows_images(cls, params: Any) -> bool:
        return params.observation in ("image", "both")

    @classmethod
    def image_params(cls, pixels: int) -> dict[str, Any]:
        return {"cell_pixels": pixels, "image_side": TOKENS_PER_SIDE * pixels}

    def state_key(self) -> str:
        return self.text if self.image is None else f"{image_hash(self.image.data)} {self.text}".strip()


class ReasoningGymEnv(PackageEnv):
    """A generated task with one answer, of reasoning-gym.

    The reward is the score of the best answer so far; full marks are success.
    """

    max_turns = 1
    needs = MappingProxyType({"reasoning_gym": "'turnwise[reasoning-gym]'"})
    worker_env = "turnwise.envs.adapters.reasoning_gym_worker:ReasoningGymWorkerEnv"
    worker_limits = ("max_turns",)

    class Params(StrictParams):
        task: str = "leg_counting"
        """Name of the dataset in reasoning-gym."""
        options: dict[str, Any] = Field({})
        """Options of the dataset, such as min_animals."""
        success_at: float = 1.0
        """Least score that counts as success."""

    params: Params

    def rules(self) -> str:
        return "Solve the task. The action is the answer alone, as the task asks for it."


class TextArenaEnv(PackageEnv):
    """A game of TextArena, for one player or against a scripted opponent."""

    max_turns = 20
    needs = MappingProxyType({"textarena": "'turnwise[textarena]'"})
    worker_env = "turnwise.envs.adapters.text_arena_worker:TextArenaWorkerEnv"

    class Params(StrictParams):
        id: str = "TicTacToe-v0"
        """Name of the game in TextArena, without -raw or -train."""
        options: dict[str, Any] = Field({})
        """Arguments of textarena.make, such as num_disks."""
        player: Literal["first", "second", "either"] = "either"
        """The agent's player in games for two; either: drawn from the task's seed."""
        opponent: Literal["random", "greedy"] = "random"
        """random: legal moves at random; greedy: a winning move if there is one, else at random."""
        moves: tuple[str, ...] = ()
        """Moves that the opponent chooses from. Default: those in square brackets in its observations."""
        success_at: float = 1.0
        """Least reward of the game that counts as success: 1 is a win, or a puzzle solved."""

    params: Params

    def rules(self) -> str:
        return "Play the game. The action is your move, in square brackets where the game says so."

    def random_action(self, rng: random.Random) -> str | None:
        """Return a legal move found in the observations; None if there is none."""
        move: str | None = self.remote.call("guess", seed=rng.getrandbits(63))
        return move


class TextWorldEnv(PackageEnv):
    """Fulfil the quest of a generated text adventure, of TextWorld."""

    max_turns = 20
    needs = MappingProxyType({"textworld": "'turnwise[textworld]'"})
    worker_env = "turnwise.envs.adapters.text_world_worker:TextWorldWorkerEnv"
    worker_limits = ("action_budget",)
    timeout_s = 120.0  # compiling a game takes seconds, many on a busy machine

    class Params(StrictParams):
        rooms: Annotated[int, Field(ge=1, le=30)] = 3
        """Number of rooms, 1 to 30."""
        objects: Annotated[int, Field(ge=1, le=50)] = 5
        """Number of objects, 1 to 50, including those of the quest."""
        quest_length: Annotated[int, Field(ge=1, le=20)] = 3
        """Number of commands that the quest takes; sometimes there is a shorter solution."""
        objective: Literal["steps", "goal"] = "steps"
        """The quest's text names every step, or only the goal."""
        narrator: Literal["facts", "inform7"] = "facts"
        """facts: visible objects in few words; inform7: TextWorld's own prose, compiled in seconds per game."""
        commands: bool = True
        """List the legal commands in each observation."""
        progress_reward: float = 0.0
        """Reward of a command that makes progress in the quest; the negative for one that undoes progress."""

    params: Params

    def rules(self) -> str:
        return "Fulfil the quest. The action is a command, such as: go east, open box, take key from box."

    def state_key(self) -> str:
        """Return the observation without the quest, which only the first one contains."""
        return self.text.partition("\n")[2] if self.text.startswith("Quest: ") else self.text
