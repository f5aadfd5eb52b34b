"""What is known of Gymnasium's own environments: rules, names of actions, the state in words, success."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.toy_text.frozen_lake import generate_random_map

Options = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    rules: str
    actions: tuple[str, ...]
    success_at: float
    """The least last reward of an episode that succeeded."""
    step_reward: float = 0.0
    """Of a step that achieves nothing: an invalid answer must not be cheaper."""
    told: Callable[[Any, Any], str]
    """(the unwrapped environment, observation) -> the state in words."""
    chance: Callable[[Options], str] = lambda options: ""
    """What the rules say of chance, by the options in force."""
    prepared: Callable[[Options, int], Options] = lambda options, seed: options
    """What a start state is made with besides the seed."""


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
    waiting = "in the taxi" if passenger == len(env.locs) else _place(env, passenger)
    return f"taxi {row},{column}; passenger {waiting}; goal {_place(env, goal)}"


def _place(env: Any, index: int) -> str:
    row, column = env.locs[index]
    return f"{'RGYB'[index]} {row},{column}"


def taxi_chance(options: Options) -> str:
    rain = f"It rains: a move goes as asked with chance {options.get('rainy_probability', 0.8):g}, else to a side. "
    mood = f"With chance {options.get('fickle_probability', 0.3):g} the passenger changes the goal once in the taxi."
    return (rain * bool(options.get("is_rainy")) + mood * bool(options.get("fickle_passenger"))).strip()


def cliff(env: Any, observation: Any) -> str:
    """The grid as Gymnasium draws it, a space between cells."""
    rows, columns = env.shape
    player = divmod(int(observation), columns)
    goal = (rows - 1, columns - 1)

    def cell(at: tuple[int, int]) -> str:
        return "x" if at == player else "T" if at == goal else "C" if env._cliff[at] else "o"

    return "\n".join(" ".join(cell((row, column)) for column in range(columns)) for row in range(rows))


def cliff_chance(options: Options) -> str:
    return "It is slippery: 1/3 of moves go as asked, 1/3 to each side." if options.get("is_slippery") else ""


def lake(env: Any, observation: Any) -> str:
    player = divmod(int(observation), env.ncol)
    cells = [[cell.decode() for cell in row] for row in env.desc]
    cells[player[0]][player[1]] = "P"
    return "\n".join(" ".join(row) for row in cells)


def lake_chance(options: Options) -> str:
    rate = options.get("success_rate", 1 / 3)
    slip = f"The ice is slippery: a move goes as asked with chance {rate:.2g}, else to either side."
    return slip if options.get("is_slippery", True) else ""


def random_lake(options: Options, seed: int) -> Options:
    """map_name "random": a map of its own for each seed, always solvable, where Gymnasium would draw it unseeded."""
    if options.get("map_name") != "random":
        return options
    others = {name: value for name, value in options.items() if name not in ("map_name", "size", "p")}
    return others | {"desc": generate_random_map(options.get("size", 4), options.get("p", 0.8), seed)}


def blackjack(env: Any, observation: Any) -> str:
    total, dealer, ace = observation
    return f"your sum {int(total)}{', with an ace that counts 11' * bool(ace)}; the dealer shows {int(dealer)}"


CLIFF = Known(
    rules="Walk from the bottom left to T. A step costs 1; the cliff C costs 100 and sends you back to the start.\n"
    "x you, o ground, C cliff, T goal.",
    actions=("Up", "Right", "Down", "Left"),
    success_at=-1.0,
    step_reward=-1.0,
    told=cliff,
    chance=cliff_chance,
)
LAKE = Known(
    rules="Walk over the ice to the goal. A hole ends the game.\nP you, S start, F ice, H hole, G goal.",
    actions=("Left", "Down", "Right", "Up"),
    success_at=1.0,
    told=lake,
    chance=lake_chance,
    prepared=random_lake,
)
KNOWN: dict[str, Known] = {
    "Taxi": Known(
        rules=TAXI,
        actions=("South", "North", "East", "West", "Pickup", "Dropoff"),
        success_at=20.0,
        step_reward=-1.0,
        told=taxi,
        chance=taxi_chance,
    ),
    "CliffWalking": CLIFF,
    "CliffWalkingSlippery": CLIFF,
    "FrozenLake": LAKE,
    "FrozenLake8x8": LAKE,
    "Blackjack": Known(
        rules="Blackjack: come nearer to 21 than the dealer, and not above it. An ace counts 1 or 11, a face card 10. "
        "Hit takes a card; Stick ends your turn, and the dealer draws to 17.",
        actions=("Stick", "Hit"),
        success_at=1.0,
        told=blackjack,
    ),
}
"""By the name without its version."""
