"""What all adapters share: a TextEnv whose world lives in the process of its package."""

import random
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from turnwise.core.errors import EnvironmentFailure
from turnwise.envs.adapters.process import RemoteWorld
from turnwise.envs.text_env import Outcome, TextEnv

MAX_ACTION = 2_000
"""Characters of an action; a longer one is invalid."""
MAX_TEXT = 20_000
"""Characters of an observation; a longer one is a failure: no context would hold it."""
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class PackageEnv(TextEnv):
    """An environment of another package."""

    world: ClassVar[str]
    """module:Class of its `World`."""
    timeout_s: ClassVar[float] = 30.0
    """For one call into the package; one that takes longer is a failure of the environment."""

    def __init__(self, params: Mapping[str, Any] | None = None, rng: random.Random | None = None) -> None:
        super().__init__(params, rng)
        self.remote = RemoteWorld(self.world, self.settings(), self.timeout_s)
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
