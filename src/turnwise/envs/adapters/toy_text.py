"""Gymnasium's toy text environments in words."""

from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from turnwise.envs.adapters.gymnasium_family import Family, Options


class ToyText(Family):
    reusable, reads_ansi = True, False

    def __init__(
        self,
        *,
        rules: str,
        actions: Sequence[str],
        success_at: float,
        step_reward: float = 0.0,
        describe: Callable[[Any, Any], str],
        symbols: str = "",
        describe_randomness: Callable[[Options], str] = lambda options: "",
        draw_options: Callable[[Options, int], Options] = lambda options, seed: options,
        shape: Callable[[Any], tuple[int, int]] | None = None,
    ) -> None:
        """`describe`, `shape`: of the unwrapped environment. `symbols`: meaning of the symbols of `describe`."""
        self._rules, self._symbols, self._describe_randomness = rules, symbols, describe_randomness
        self.actions, self.success_at, self.step_reward = actions, success_at, step_reward
        self._describe, self._draw_options, self._shape = describe, draw_options, shape

    def rules(self, spec: Any, options: Options, *, text: bool, image: bool) -> str:
        randomness = self._describe_randomness(spec.kwargs | options)
        return "\n".join(line for line in (self._rules, self._symbols if text else "", randomness) if line)

    def draw_options(self, options: Options, seed: int) -> Options:
        return self._draw_options(options, seed)

    def describe(self, env: Any, observation: Any) -> str:
        return self._describe(env.unwrapped, observation)

    def shape(self, env: Any) -> tuple[int, int] | None:
        return None if self._shape is None else self._shape(env.unwrapped)


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


CLIFF = ToyText(
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
LAKE = ToyText(
    rules="Walk over the ice to the goal. A hole ends the game.",
    symbols="P you, S start, F ice, H hole, G goal.",
    actions=("Left", "Down", "Right", "Up"),
    success_at=1.0,
    describe=lake,
    describe_randomness=lake_randomness,
    draw_options=random_lake,
    shape=lambda env: env.desc.shape,
)
TOY_TEXT: dict[str, Family] = {
    "Taxi": ToyText(
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
    "Blackjack": ToyText(
        rules="Blackjack: come nearer to 21 than the dealer, and not above it. An ace counts 1 or 11, a face card 10. "
        "Hit takes a card; Stick ends your turn, and the dealer draws to 17.",
        actions=("Stick", "Hit"),
        success_at=1.0,
        describe=blackjack,
    ),
}
"""By name without the version."""
