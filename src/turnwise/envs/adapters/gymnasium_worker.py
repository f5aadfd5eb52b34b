"""Gymnasium environments in words, inside their worker process."""

import base64
import json
import random
from collections import defaultdict
from enum import IntEnum
from importlib import import_module
from typing import Any

import gymnasium
import numpy
from gymnasium.envs.registration import parse_env_id

from turnwise.envs.adapters.gymnasium_family import Family
from turnwise.envs.adapters.minigrid import PREFIXES, MiniGrid
from turnwise.envs.adapters.toy_text import TOY_TEXT
from turnwise.envs.adapters.worker import IllegalAction, InvalidSetting, WorkerEnv, WorkerStep
from turnwise.pictures.image import Image, import_pillow

MAX_DRAWS = 200
"""Start states that are drawn until one can be solved within the limits."""
IDLE: defaultdict[str, list[Any]] = defaultdict(list)
"""Environments of finished episodes by their arguments, for reuse: building their tables takes longer than an episode,
and `reset` restarts Gymnasium's own environments completely."""
RGB = "rgb_array"


def find_family(env_id: str) -> Family:
    """Return the family of an environment's id, such as Taxi-v3. Raises gymnasium's error for a malformed one."""
    namespace, name, _ = parse_env_id(env_id)
    if namespace is not None:
        return Family()
    return MiniGrid() if name.startswith(PREFIXES) else TOY_TEXT.get(name, Family())


class GymnasiumWorkerEnv(WorkerEnv):
    reusable = False
    env: Any = None

    def __init__(
        self,
        id: str,
        options: dict[str, Any],
        actions: list[str],
        success_at: float | None,
        invalid_reward: float | None,
        action_budget: int,
        observation: str,
        image_side: int,
        cell_pixels: int | None,
    ) -> None:
        module, _, name = id.rpartition(":")
        try:
            self.family = find_family(name)
            if module := module or self.family.module:
                import_module(module)
            self.spec = gymnasium.spec(name)
        except (gymnasium.error.Error, ImportError) as error:
            raise InvalidSetting(f"{error}", param="id") from error
        self.options, self.action_budget = options, action_budget
        self.shows_text, self.shows_image = observation != "image", observation != "text"
        self.image_side, self.cell_pixels = image_side, cell_pixels
        self.success_at = self.family.success_at if success_at is None else success_at
        self.invalid_reward = self.family.step_reward if invalid_reward is None else invalid_reward
        self.draws_options = self.family.draw_options(options, 0) is not options
        self.reusable = self.family.reusable and not self.draws_options
        self.key = json.dumps([self.spec.id, options, self.shows_image], sort_keys=True)
        self.env = IDLE[self.key].pop() if self.reusable and IDLE[self.key] else self._make(seed=0)
        self.first, count = self._actions()
        self.names = actions or self.family.actions or self._default_names(count)
        if len(set(self.names)) != count:
            raise InvalidSetting(f"{id} has {count} actions: give as many different names.", param="actions")

    def __del__(self) -> None:
        if self.reusable and self.env is not None:
            IDLE[self.key].append(self.env)

    def about(self) -> dict[str, Any]:
        rules = self.family.rules(self.spec, self.options, text=self.shows_text, image=self.shows_image)
        return {"rules": rules, "actions": list(self.names), "invalid_reward": self.invalid_reward}

    def reset(self, seed: int) -> WorkerStep:
        """Draw start states until one can be solved within the limits, if that is known."""
        rng = random.Random(seed)
        for _ in range(MAX_DRAWS):
            number = rng.getrandbits(32)
            if self.draws_options:
                self.env = self._make(number)
            self.observation, _ = self.env.reset(seed=number)
            solution = self.solve()
            if solution is None or len(solution) <= self.action_budget:
                return self._observe()
        raise InvalidSetting(
            f"No start of {self.spec.id} can be solved in {self.action_budget} actions: raise it.", param="max_turns"
        )

    def reseed(self, seed: int) -> None:
        self.env.unwrapped.np_random = numpy.random.default_rng(seed)

    def step(self, action: str) -> WorkerStep:
        if action not in self.names:
            raise IllegalAction(action)
        number = self.first + self.names.index(action)
        self.observation, reward, terminated, truncated, _ = self.env.step(number)
        least = self.success_at
        success = bool(terminated) and (reward > 0 if least is None else reward >= least)
        over = bool(terminated or truncated)
        return {**self._observe(), "reward": float(reward), "over": over, "success": bool(success)}

    def solve(self) -> list[str] | None:
        return self.family.solve(self.env, self.observation, self.names, self.success_at)

    def _make(self, seed: int) -> Any:
        entry = self.spec.entry_point
        creator = entry if callable(entry) else gymnasium.envs.registration.load_env_creator(entry)
        modes = getattr(creator, "metadata", {}).get("render_modes", [])
        mode = "ansi" if self.family.reads_ansi and "ansi" in modes else None
        if self.shows_image:
            mode = RGB
            if RGB not in modes:
                raise InvalidSetting(f"{self.spec.id} draws no {RGB} images: choose text.", param="observation")
        options = self.family.draw_options(self.options, seed)
        try:
            # max_episode_steps -1: only the limit in the prompt applies
            return gymnasium.make(
                self.spec, render_mode=mode, max_episode_steps=-1, disable_env_checker=True, **options
            )
        except (gymnasium.error.Error, TypeError, ValueError, KeyError, AssertionError) as error:
            raise InvalidSetting(f"{self.spec.id} rejects these options: {error}", param="") from error

    def _actions(self) -> tuple[int, int]:
        space = self.env.action_space
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise InvalidSetting(f"The actions of {self.spec.id} are not discrete: choose another.", param="id")
        return int(space.start), int(space.n)

    def _default_names(self, count: int) -> list[str]:
        """Return the names of an enumeration of the actions, if the environment has one, else their numbers."""
        listed = getattr(self.env.unwrapped, "actions", None)
        if isinstance(listed, type) and issubclass(listed, IntEnum) and [*listed] == [*range(self.first, count)]:
            return [action.name for action in listed]
        return [str(self.first + number) for number in range(count)]

    def _observe(self) -> WorkerStep:
        describe = self.family.describe if self.shows_text else self.family.describe_hidden
        text = describe(self.env, self.observation)
        return {"text": text, "image": self._image()} if self.shows_image else {"text": text}

    def _image(self) -> str:
        """Return the environment's frame in base64: `cell_pixels` per cell, or scaled down to `image_side`."""
        try:
            frame = self.env.render()
        except gymnasium.error.Error as error:
            raise InvalidSetting(f"{self.spec.id} cannot draw: {error}", param="observation") from error
        pillow = import_pillow()
        image, shape = pillow.Image.fromarray(numpy.asarray(frame)), self.family.shape(self.env)
        if self.cell_pixels is None or shape is None:
            image.thumbnail((self.image_side, self.image_side))
        else:  # BOX: pixels of a cell do not depend on its neighbours
            rows, columns = shape
            image = image.resize((columns * self.cell_pixels, rows * self.cell_pixels), pillow.Image.Resampling.BOX)
        return base64.b64encode(Image(image).data).decode("ascii")
