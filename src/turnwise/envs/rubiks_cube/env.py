"""Rubik's cube 2x2, scrambled a few moves from solved."""

import random
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from turnwise.core.errors import UserError
from turnwise.core.messages import Content, Picture
from turnwise.envs.picture_env import PictureEnv
from turnwise.envs.rubiks_cube.cube import FACES, MAX_DEPTH, MOVES, CubeState, is_solved, scramble, shortest_solution
from turnwise.envs.text_env import Outcome, StrictParams, check_range, goes_on, won

NET = (" U  ", "LFRB", " D  ")
"""The unfolded cube in pictures."""
TEXT_LEGEND = "Each line is a face: its squares row by row from outside, U above F, D below F, and L F R B in a row."
PICTURE_LEGEND = "The image shows the unfolded cube: U above F, D below F, and L F R B in a row."


class RubiksCube(PictureEnv):
    """Turn the faces of a 2 by 2 cube until each has one color."""

    split_start_states = True
    max_turns = 5
    max_actions_per_turn = 5
    max_actions = 10
    action_names = tuple(MOVES)
    fact_example = "U white white green green"

    class Params(StrictParams):
        min_depth: Annotated[int, Field(ge=1, le=MAX_DEPTH)] = 1
        """Fewest moves from solved, 1 to 6; each task draws its depth uniformly from min_depth to max_depth."""
        max_depth: Annotated[int, Field(ge=1, le=MAX_DEPTH)] = MAX_DEPTH
        """Most moves from solved, 1 to 6; at most the actions of an episode."""
        solved_reward: float = 1.0
        """Reward of a solved cube, the only reward."""

        _check_depths = check_range("min_depth", "max_depth")

    params: Params

    def rules(self) -> str:
        least, most = self.params.min_depth, self.effective_max_depth
        return (
            f"{super().rules()} You can solve it in {least if least == most else f'{least} to {most}'} moves.\n"
            "U top, D bottom, L left, R right, F front, B back. U turns the top clockwise, U' the other way.\n"
            f"{TEXT_LEGEND if self.shows_text else PICTURE_LEGEND}"
        )

    @property
    def effective_max_depth(self) -> int:
        """Largest depth that both `max_depth` and the action limits allow."""
        depth = min(self.params.max_depth, self.action_budget)
        if depth < self.params.min_depth:
            raise UserError(
                f"min_depth {self.params.min_depth} needs as many actions, and the limits allow {self.action_budget}: "
                "lower min_depth or raise max_turns or max_actions."
            )
        return depth

    def reset(self, rng: random.Random) -> Content:
        self.cube = scramble(rng, depth=rng.randint(self.params.min_depth, self.effective_max_depth))
        return self.show(self.state_key())

    def step(self, action: str) -> Outcome:
        self.cube = MOVES[action](self.cube)
        if is_solved(self.cube):
            return won(self.show(self.state_key()), self.params.solved_reward)
        return goes_on(self.show(self.state_key()))

    def solve(self) -> list[str] | None:
        """The shortest solution from here, if an episode's limits allow it."""
        return shortest_solution(self.cube, max_moves=self.action_budget)

    def draw(self) -> Picture:
        return draw_cube(self.cube)

    def state_key(self) -> str:
        return cube_text(self.cube)

    def state_text(self) -> str:
        return cube_text(self.cube)


@lru_cache(maxsize=4096)
def cube_text(cube: CubeState) -> str:
    """One face per line: `U white white green green`. Colours are words, since R could be right or red."""
    return "\n".join(f"{face} {' '.join(cube[4 * i : 4 * i + 4])}" for i, face in enumerate(FACES))


@lru_cache(maxsize=4096)
def draw_cube(cube: CubeState) -> Picture:
    at = {face: (cube[4 * i : 4 * i + 2], cube[4 * i + 2 : 4 * i + 4]) for i, face in enumerate(FACES)}
    at[" "] = (("empty", "empty"), ("empty", "empty"))
    return Picture(rows=tuple(sum((at[face][row] for face in faces), ()) for faces in NET for row in (0, 1)))
