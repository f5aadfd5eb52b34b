"""Gymnasium environments in words, inside their worker process."""

import base64
import json
import random
import re
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from typing import Any

import gymnasium
import numpy
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from turnwise.envs.adapters.minigrid import MODULE as MINIGRID
from turnwise.envs.adapters.minigrid import (
    MOVES,
    describe_carried,
    describe_grid,
    describe_rules,
    is_minigrid,
    shortest_path,
)
from turnwise.envs.adapters.worker import IllegalAction, InvalidSetting, WorkerEnv, WorkerStep
from turnwise.pictures.image import Image, import_pillow

MAX_DRAWS = 200
"""Start states that are drawn until one can be solved within the limits."""
IDLE: defaultdict[str, list[Any]] = defaultdict(list)
"""Environments of finished episodes by their arguments, for reuse: building their tables takes longer than an episode,
and `reset` restarts Gymnasium's own environments completely."""
MAX_NUMBERS = 32
RGB = "rgb_array"
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
COLOURED = re.compile(r"\x1b\[([0-9;]+)m(.*?)\x1b\[0m", re.DOTALL)


Options = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEnv:
    rules: str
    actions: tuple[str, ...]
    success_at: float
    """Least last reward of a successful episode."""
    step_reward: float = 0.0
    """Reward of a step that achieves nothing; also the default of invalid actions, which must not be cheaper."""
    describe: Callable[[Any, Any], str]
    """(unwrapped environment, observation) -> the state in words."""
    symbols: str = ""
    """Meaning of the symbols in those words."""
    describe_randomness: Callable[[Options], str] = lambda options: ""
    """Sentence of the rules about random outcomes, given the options."""
    draw_options: Callable[[Options, int], Options] = lambda options, seed: options
    """(options, seed) -> arguments of `gymnasium.make` for one start state."""
    shape: Callable[[Any], tuple[int, int]] | None = None
    """unwrapped environment -> rows and columns of cells in its image; None if it shows no cells."""


TAXI = """Drive the taxi to the passenger, pick up, drive to the goal, drop off.
Cells are row,column from 0,0 at the top left.
+---------+
|R: | : :G|
| : | : : |
| : : : : |
| | : | : |
|Y| : |B: |
+---------+
The taxi crosses : but not |. A step costs 1, a wrong Pickup or Dropoff 10; the passenger at the goal pays 20."""


def taxi(env: Any, observation: Any) -> str:
    row, column, passenger, goal = env.decode(int(observation))
    waiting = "in the taxi" if passenger == len(env.locs) else _location(env, passenger)
    return f"taxi {row},{column}; passenger {waiting}; goal {_location(env, goal)}"


def _location(env: Any, index: int) -> str:
    row, column = env.locs[index]
    return f"{'RGYB'[index]} {row},{column}"


def taxi_randomness(options: Options) -> str:
    rain = f"It rains: a move goes as asked with chance {options.get('rainy_probability', 0.8):g}, else to a side. "
    mood = f"With chance {options.get('fickle_probability', 0.3):g} the passenger changes the goal once in the taxi."
    return (rain * bool(options.get("is_rainy")) + mood * bool(options.get("fickle_passenger"))).strip()


def cliff(env: Any, observation: Any) -> str:
    """Draw the grid as Gymnasium does, with a space between cells."""
    rows, columns = env.shape
    player = divmod(int(observation), columns)
    goal = (rows - 1, columns - 1)

    def cell(at: tuple[int, int]) -> str:
        return "x" if at == player else "T" if at == goal else "C" if env._cliff[at] else "o"

    return "\n".join(" ".join(cell((row, column)) for column in range(columns)) for row in range(rows))


def cliff_randomness(options: Options) -> str:
    return "It is slippery: 1/3 of moves go as asked, 1/3 to each side." if options.get("is_slippery") else ""


def lake(env: Any, observation: Any) -> str:
    player = divmod(int(observation), env.ncol)
    cells = [[cell.decode() for cell in row] for row in env.desc]
    cells[player[0]][player[1]] = "P"
    return "\n".join(" ".join(row) for row in cells)


def lake_randomness(options: Options) -> str:
    rate = options.get("success_rate", 1 / 3)
    slip = f"The ice is slippery: a move goes as asked with chance {rate:.2g}, else to either side."
    return slip if options.get("is_slippery", True) else ""


def random_lake(options: Options, seed: int) -> Options:
    """Draw a solvable map per seed for map_name "random", which Gymnasium would draw unseeded."""
    if options.get("map_name") != "random":
        return options
    others = {name: value for name, value in options.items() if name not in ("map_name", "size", "p")}
    return others | {"desc": generate_random_map(options.get("size", 4), options.get("p", 0.8), seed)}


def blackjack(env: Any, observation: Any) -> str:
    total, dealer, ace = observation
    return f"your sum {int(total)}{', with an ace that counts 11' * bool(ace)}; the dealer shows {int(dealer)}"


CLIFF = KnownEnv(
    rules="Walk from the bottom left to the goal at the bottom right. A step costs 1; the cliff costs 100 and sends "
    "you back to the start.",
    symbols="x you, o ground, C cliff, T goal.",
    actions=("Up", "Right", "Down", "Left"),
    success_at=-1.0,
    step_reward=-1.0,
    describe=cliff,
    describe_randomness=cliff_randomness,
    shape=lambda env: env.shape,
)
LAKE = KnownEnv(
    rules="Walk over the ice to the goal. A hole ends the game.",
    symbols="P you, S start, F ice, H hole, G goal.",
    actions=("Left", "Down", "Right", "Up"),
    success_at=1.0,
    describe=lake,
    describe_randomness=lake_randomness,
    draw_options=random_lake,
    shape=lambda env: env.desc.shape,
)
KNOWN: dict[str, KnownEnv] = {
    "Taxi": KnownEnv(
        rules=TAXI,
        actions=("South", "North", "East", "West", "Pickup", "Dropoff"),
        success_at=20.0,
        step_reward=-1.0,
        describe=taxi,
        describe_randomness=taxi_randomness,
        shape=lambda env: env.desc.shape,
    ),
    "CliffWalking": CLIFF,
    "CliffWalkingSlippery": CLIFF,
    "FrozenLake": LAKE,
    "FrozenLake8x8": LAKE,
    "Blackjack": KnownEnv(
        rules="Blackjack: come nearer to 21 than the dealer, and not above it. An ace counts 1 or 11, a face card 10. "
        "Hit takes a card; Stick ends your turn, and the dealer draws to 17.",
        actions=("Stick", "Hit"),
        success_at=1.0,
        describe=blackjack,
    ),
}
"""By name without the version."""


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
        self.is_minigrid = is_minigrid(name)
        module = module or (MINIGRID if self.is_minigrid else "")
        try:
            if module:
                import_module(module)
            self.spec = gymnasium.spec(name)
        except (gymnasium.error.Error, ImportError) as error:
            raise InvalidSetting(f"env.params.id: {error}") from error
        self.options, self.action_budget = options, action_budget
        self.shows_text, self.shows_image = observation != "image", observation != "text"
        self.image_side, self.cell_pixels = image_side, cell_pixels
        self.known = KNOWN.get(self.spec.name) if self.spec.namespace is None else None
        self.success_at = self.known.success_at if success_at is None and self.known is not None else success_at
        step_reward = self.known.step_reward if self.known is not None else 0.0
        self.invalid_reward = step_reward if invalid_reward is None else invalid_reward
        self.reusable = self.known is not None and self.known.draw_options(options, 0) is options
        self.key = json.dumps([self.spec.id, options, self.shows_image], sort_keys=True)
        self.env = IDLE[self.key].pop() if self.reusable and IDLE[self.key] else self._make(seed=0)
        self.first, count = self._actions()
        self.names = actions or (self.known.actions if self.known else self._default_names(count))
        if len(set(self.names)) != count:
            raise InvalidSetting(f"env.params.actions: {id} has {count} actions: give as many different names")

    def __del__(self) -> None:
        if self.reusable and self.env is not None:
            IDLE[self.key].append(self.env)

    def about(self) -> dict[str, Any]:
        minigrid = describe_rules(text=self.shows_text, image=self.shows_image)
        rules = minigrid if self.is_minigrid else f"Gymnasium's {self.spec.id}."
        if self.known:
            symbols = self.known.symbols if self.shows_text else ""
            randomness = self.known.describe_randomness(self.spec.kwargs | self.options)
            rules = "\n".join(line for line in (self.known.rules, symbols, randomness) if line)
        return {"rules": rules, "actions": list(self.names), "invalid_reward": self.invalid_reward}

    def reset(self, seed: int) -> WorkerStep:
        """Draw start states until one can be solved within the limits, if that is known."""
        rng = random.Random(seed)
        for _ in range(MAX_DRAWS):
            number = rng.getrandbits(32)
            if self.known and not self.reusable:
                self.env = self._make(number)
            self.observation, _ = self.env.reset(seed=number)
            solution = self.solve()
            if solution is None or len(solution) <= self.action_budget:
                return self._observe()
        raise InvalidSetting(
            f"no start of {self.spec.id} can be solved in {self.action_budget} actions: raise env.params.max_turns"
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
        """Return the shortest solution if the environment has a deterministic transition table."""
        if self.is_minigrid:
            return shortest_path(self.env.unwrapped) if set(MOVES) <= set(self.names) else None
        table = getattr(self.env.unwrapped, "P", None)
        if not isinstance(table, Mapping) or self.success_at is None:
            return None
        return shortest_solution(table, int(self.observation), self.success_at, self.names)

    def _make(self, seed: int) -> Any:
        entry = self.spec.entry_point
        creator = entry if callable(entry) else gymnasium.envs.registration.load_env_creator(entry)
        modes = getattr(creator, "metadata", {}).get("render_modes", [])
        mode = "ansi" if self.known is None and "ansi" in modes else None
        if self.shows_image:
            mode = RGB
            if RGB not in modes:
                raise InvalidSetting(f"env.params.observation: {self.spec.id} draws no {RGB} images: choose text")
        options = self.known.draw_options(self.options, seed) if self.known else self.options
        try:
            # max_episode_steps -1: only the limit in the prompt applies
            return gymnasium.make(
                self.spec, render_mode=mode, max_episode_steps=-1, disable_env_checker=True, **options
            )
        except (gymnasium.error.Error, TypeError, ValueError, KeyError, AssertionError) as error:
            raise InvalidSetting(f"env.params: {self.spec.id} rejects these options: {error}") from error

    def _actions(self) -> tuple[int, int]:
        space = self.env.action_space
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise InvalidSetting(f"env.params.id: the actions of {self.spec.id} are not discrete: choose another")
        return int(space.start), int(space.n)

    def _default_names(self, count: int) -> list[str]:
        """Return the names of an enumeration of the actions, if the environment has one, else their numbers."""
        listed = getattr(self.env.unwrapped, "actions", None)
        if isinstance(listed, type) and issubclass(listed, IntEnum) and [*listed] == [*range(self.first, count)]:
            return [action.name for action in listed]
        return [str(self.first + number) for number in range(count)]

    def _observe(self) -> WorkerStep:
        hidden = describe_goal(self.observation)
        if self.is_minigrid:
            hidden = "\n".join(part for part in (hidden, describe_carried(self.env.unwrapped)) if part)
        text = self._text(hidden) if self.shows_text else hidden
        return {"text": text, "image": self._image()} if self.shows_image else {"text": text}

    def _image(self) -> str:
        """Return the environment's frame in base64: `cell_pixels` per cell, or scaled down to `image_side`."""
        try:
            frame = self.env.render()
        except gymnasium.error.Error as error:
            raise InvalidSetting(f"env.params.observation: {self.spec.id} cannot draw: {error}") from error
        pillow = import_pillow()
        image, shape = pillow.Image.fromarray(numpy.asarray(frame)), self._shape()
        if self.cell_pixels is None or shape is None:
            image.thumbnail((self.image_side, self.image_side))
        else:  # BOX: pixels of a cell do not depend on its neighbours
            rows, columns = shape
            image = image.resize((columns * self.cell_pixels, rows * self.cell_pixels), pillow.Image.Resampling.BOX)
        return base64.b64encode(Image(image).data).decode("ascii")

    def _shape(self) -> tuple[int, int] | None:
        """Return the rows and columns of cells in images; None if these show no cells."""
        env = self.env.unwrapped
        if self.is_minigrid:
            return env.grid.height, env.grid.width
        return self.known.shape(env) if self.known and self.known.shape else None

    def _text(self, hidden: str) -> str:
        """Return the state in words. `hidden`: what images do not show."""
        if self.is_minigrid:
            return f"{describe_grid(self.env.unwrapped)}\n{hidden}"
        if self.known:
            return self.known.describe(self.env.unwrapped, self.observation)
        if self.env.render_mode == "ansi":
            return COLOURED.sub(_name_colours, str(self.env.render())).strip()
        return format_observation(self.observation, self.spec.id)


def describe_goal(observation: Any) -> str:
    """Return the texts of an observation, such as MiniGrid's mission, which no image shows."""
    if not isinstance(observation, Mapping):
        return ""
    return "; ".join(f"{key}: {value}" for key, value in observation.items() if isinstance(value, str))


def _name_colours(coloured: re.Match[str]) -> str:
    """Write [red S] for an S in red or on red: colours carry meaning that plain text would lose."""
    codes = [int(code) for code in coloured[1].split(";") if code]
    names = [COLOURS[code % 10] for code in codes if 30 <= code < 48 and code % 10 < len(COLOURS)]
    return f"[{' '.join([*names, coloured[2]])}]"


def format_observation(observation: Any, name: str) -> str:
    """Return a small observation as text."""
    if isinstance(observation, Mapping):
        return "; ".join(f"{key} {format_observation(value, name)}" for key, value in observation.items())
    if isinstance(observation, tuple):
        return ", ".join(format_observation(value, name) for value in observation)
    if isinstance(observation, numpy.ndarray):
        if observation.size > MAX_NUMBERS:
            raise InvalidSetting(
                f"env.params.id: {name} has observations of more than {MAX_NUMBERS} numbers: choose another"
            )
        return ", ".join(format_observation(value, name) for value in observation.ravel())
    return str(observation) if isinstance(observation, str | int | numpy.integer) else f"{observation:.4g}"


def shortest_solution(table: Mapping[Any, Any], start: int, success_at: float, names: Any) -> list[str] | None:
    """Search {state: {action: [(probability, next state, reward, over)]}} breadth first; None if it is random."""
    paths: dict[int, list[str]] = {start: []}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for action, outcomes in table[state].items():
            if len(outcomes) != 1:
                return None
            _, after, reward, over = outcomes[0]
            path = [*paths[state], names[action]]
            if over and reward >= success_at:
                return path
            if not over and after not in paths:
                paths[after] = path
                queue.append(after)
    return None
