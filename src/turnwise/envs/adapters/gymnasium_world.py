"""One episode of a Gymnasium environment, in its own process."""

import json
import random
import re
from collections import defaultdict, deque
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import gymnasium
import numpy

from turnwise.envs.adapters.gymnasium_known import KNOWN
from turnwise.envs.adapters.world import IllegalAction, Scene, World, WrongSetting

DRAWS = 200
"""Start states that are drawn in search of one that the limits allow to solve."""
IDLE: defaultdict[str, list[Any]] = defaultdict(list)
"""Environments of episodes that are over, by what they were made with: Gymnasium's own start anew at a reset, and their
tables take longer to make than an episode to play."""
MAX_NUMBERS = 32
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
COLOURED = re.compile(r"\x1b\[([0-9;]+)m(.*?)\x1b\[0m", re.DOTALL)


class GymnasiumWorld(World):
    reusable = False
    env: Any = None

    def __init__(
        self,
        id: str,
        options: dict[str, Any],
        actions: list[str],
        success_at: float | None,
        invalid_reward: float | None,
        longest: int,
    ) -> None:
        module, _, name = id.rpartition(":")
        try:
            if module:
                import_module(module)
            self.spec = gymnasium.spec(name)
        except (gymnasium.error.Error, ImportError) as error:
            raise WrongSetting(f"env.params.id: {error}") from error
        self.options, self.longest = options, longest
        self.known = KNOWN.get(self.spec.name) if self.spec.namespace is None else None
        self.success_at = self.known.success_at if success_at is None and self.known is not None else success_at
        step_reward = self.known.step_reward if self.known is not None else 0.0
        self.invalid_reward = step_reward if invalid_reward is None else invalid_reward
        self.reusable = self.known is not None and self.known.prepared(options, 0) is options
        self.key = json.dumps([self.spec.id, options], sort_keys=True)
        self.env = IDLE[self.key].pop() if self.reusable and IDLE[self.key] else self._made(seed=0)
        self.first, count = self._actions()
        self.names = actions or (self.known.actions if self.known else [str(self.first + n) for n in range(count)])
        if len(set(self.names)) != count:
            raise WrongSetting(f"env.params.actions: {id} has {count} actions: give as many different names")

    def __del__(self) -> None:
        if self.reusable and self.env is not None:
            IDLE[self.key].append(self.env)

    def about(self) -> dict[str, Any]:
        rules = f"Gymnasium's {self.spec.id}."
        if self.known:
            chance = self.known.chance(self.spec.kwargs | self.options)
            rules = f"{self.known.rules}\n{chance}".strip()
        return {"rules": rules, "actions": list(self.names), "invalid_reward": self.invalid_reward}

    def reset(self, seed: int) -> Scene:
        """Draws until the start is one that can be solved within the limits, where that can be told."""
        draws = random.Random(seed)
        for _ in range(DRAWS):
            number = draws.getrandbits(32)
            if self.known and not self.reusable:
                self.env = self._made(number)
            self.observation, _ = self.env.reset(seed=number)
            way = self.solve()
            if way is None or len(way) <= self.longest:
                return {"text": self._text()}
        raise WrongSetting(
            f"no start of {self.spec.id} is solved in {self.longest} actions: raise env.params.max_turns"
        )

    def later(self, seed: int) -> None:
        self.env.unwrapped.np_random = numpy.random.default_rng(seed)

    def step(self, action: str) -> Scene:
        if action not in self.names:
            raise IllegalAction(action)
        number = self.first + self.names.index(action)
        self.observation, reward, terminated, truncated, _ = self.env.step(number)
        least = self.success_at
        success = bool(terminated) and (reward > 0 if least is None else reward >= least)
        over = bool(terminated or truncated)
        return {"text": self._text(), "reward": float(reward), "over": over, "success": bool(success)}

    def solve(self) -> list[str] | None:
        """The shortest way to success, where the environment shows its table and nothing in it is left to chance."""
        table = getattr(self.env.unwrapped, "P", None)
        if not isinstance(table, Mapping) or self.success_at is None:
            return None
        return shortest_way(table, int(self.observation), self.success_at, self.names)

    def _made(self, seed: int) -> Any:
        entry = self.spec.entry_point
        creator = entry if callable(entry) else gymnasium.envs.registration.load_env_creator(entry)
        modes = getattr(creator, "metadata", {}).get("render_modes", [])
        mode = "ansi" if self.known is None and "ansi" in modes else None
        options = self.known.prepared(self.options, seed) if self.known else self.options
        try:
            # max_episode_steps -1: no limit but the one that the prompt states
            return gymnasium.make(
                self.spec, render_mode=mode, max_episode_steps=-1, disable_env_checker=True, **options
            )
        except (gymnasium.error.Error, TypeError, ValueError, KeyError, AssertionError) as error:
            raise WrongSetting(f"env.params: {self.spec.id} cannot be made so: {error}") from error

    def _actions(self) -> tuple[int, int]:
        space = self.env.action_space
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise WrongSetting(f"env.params.id: the actions of {self.spec.id} are not discrete: choose another")
        return int(space.start), int(space.n)

    def _text(self) -> str:
        if self.known:
            return self.known.told(self.env.unwrapped, self.observation)
        if self.env.render_mode == "ansi":
            return COLOURED.sub(_in_words, str(self.env.render())).strip()
        return plain(self.observation, self.spec.id)


def _in_words(coloured: re.Match[str]) -> str:
    """[red S] for an S in red or on red: colours carry meaning that plain text would lose."""
    codes = [int(code) for code in coloured[1].split(";") if code]
    names = [COLOURS[code % 10] for code in codes if 30 <= code < 48 and code % 10 < len(COLOURS)]
    return f"[{' '.join([*names, coloured[2]])}]"


def plain(observation: Any, name: str) -> str:
    """Numbers and words of an observation, a few of them."""
    if isinstance(observation, Mapping):
        return "; ".join(f"{key} {plain(value, name)}" for key, value in observation.items())
    if isinstance(observation, tuple):
        return ", ".join(plain(value, name) for value in observation)
    if isinstance(observation, numpy.ndarray):
        if observation.size > MAX_NUMBERS:
            raise WrongSetting(f"env.params.id: {name} shows pictures, or too many numbers to tell: choose another")
        return ", ".join(plain(value, name) for value in observation.ravel())
    return str(observation) if isinstance(observation, str | int | numpy.integer) else f"{observation:.4g}"


def shortest_way(table: Mapping[Any, Any], start: int, success_at: float, names: Any) -> list[str] | None:
    """Breadth first over {state: {action: [(chance, next state, reward, over)]}}; None where chance has a say."""
    ways: dict[int, list[str]] = {start: []}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for action, outcomes in table[state].items():
            if len(outcomes) != 1:
                return None
            _, after, reward, over = outcomes[0]
            way = [*ways[state], names[action]]
            if over and reward >= success_at:
                return way
            if not over and after not in ways:
                ways[after] = way
                queue.append(after)
    return None
