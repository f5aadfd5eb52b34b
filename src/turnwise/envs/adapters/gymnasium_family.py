"""Families of Gymnasium environments: how each is put into words. `Family` itself is that of unknown environments."""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy

from turnwise.envs.adapters.worker import InvalidSetting
from turnwise.envs.shortest_path import search_path

MAX_NUMBERS = 32
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
COLOURED = re.compile(r"\x1b\[([0-9;]+)m(.*?)\x1b\[0m", re.DOTALL)
SOLVED = "solved"

Options = dict[str, Any]


class Family:
    """Environments of which only Gymnasium's own interface is known. Families that know more override the methods."""

    module = ""
    """Module that registers the environments; empty if Gymnasium does."""
    actions: Sequence[str] = ()
    """Names of the actions; empty: those of the environment, or numbers."""
    success_at: float | None = None
    """Least last reward of a successful episode; None: any above 0."""
    step_reward: float = 0.0
    """Reward of a step that achieves nothing; also the default of invalid actions, which must not be cheaper."""
    reusable = False
    """Whether `reset` restarts an environment completely, so that later episodes can use it again."""
    reads_ansi = True
    """Whether states are described by what the environment renders as text, if it does."""

    def rules(self, spec: Any, options: Options, *, text: bool, image: bool) -> str:
        """Return the rules of the prompt. `text` and `image`: what the observations contain."""
        return f"Gymnasium's {spec.id}."

    def draw_options(self, options: Options, seed: int) -> Options:
        """Return the arguments of `gymnasium.make` for one start state."""
        return options

    def describe(self, env: Any, observation: Any) -> str:
        """Return the state in words."""
        if env.render_mode == "ansi":
            return COLOURED.sub(_name_colours, str(env.render())).strip()
        return format_observation(observation, env.spec.id)

    def describe_hidden(self, env: Any, observation: Any) -> str:
        """Return what no image shows, such as MiniGrid's mission: the texts of an observation."""
        if not isinstance(observation, Mapping):
            return ""
        return "; ".join(f"{key}: {value}" for key, value in observation.items() if isinstance(value, str))

    def shape(self, env: Any) -> tuple[int, int] | None:
        """Return the rows and columns of cells in images; None if these show no cells."""
        return None

    def solve(self, env: Any, observation: Any, names: Sequence[str], success_at: float | None) -> list[str] | None:
        """Return the shortest solution if it is known: here from a deterministic transition table."""
        table = getattr(env.unwrapped, "P", None)
        if not isinstance(table, Mapping) or success_at is None:
            return None
        return solve_table(table, int(observation), success_at, names)


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
                f"{name} has observations of more than {MAX_NUMBERS} numbers: choose another.", param="id"
            )
        return ", ".join(format_observation(value, name) for value in observation.ravel())
    return str(observation) if isinstance(observation, str | int | numpy.integer) else f"{observation:.4g}"


def solve_table(table: Mapping[Any, Any], start: int, success_at: float, names: Sequence[str]) -> list[str] | None:
    """Search {state: {action: [(probability, next state, reward, over)]}}; None if it is random."""
    if any(len(outcomes) != 1 for actions in table.values() for outcomes in actions.values()):
        return None

    def successors(state: Hashable) -> Iterator[tuple[str, Hashable]]:
        for action, [(_, after, reward, over)] in table[state].items():
            if not over:
                yield names[action], after
            elif reward >= success_at:
                yield names[action], SOLVED

    return search_path(cast(Hashable, start), successors, lambda state: state == SOLVED)
